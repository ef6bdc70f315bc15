"""Short news items with highlights, in the manner of CNN/DailyMail summarization.

Every article holds the facts of its highlights and distractors of the same kinds (another person, another town, last
year's figure); the roles in the sentences decide which belong. Highlights are telegraphic, so that nearly all of their
ROUGE-L must be earned by copying the right facts.

In sentences, `[one|two|three]` marks wordings that mean the same.
"""

import random
import re
from typing import Any

from pocket.problems import Content, Fields, Template, table

FIRST_NAMES = table("""
Ada Alan Amir Anna Arthur Bella Boris Carla Cesar Clara Daniel Diana Edgar Elena Emma Eric Farah Felix Fiona Frank
Grace Hana Harry Helen Hugo Ines Irene Ivan Jack Jane Jonas Julia Karim Karen Kofi Laura Leo Lily Lucas Maria Mark
Maya Milan Nadia Nina Noah Olga Omar Oscar Paula Peter Rita Robert Rosa Sam Sarah Simon Tina Tom Vera
""")
LAST_NAMES = table("""
Abbott Adler Bailey Barnes Becker Bennett Blake Brandt Burke Carter Chavez Cohen Cooper Costa Cruz Dalton Diaz Doyle
Duncan Ellis Evans Farrow Fisher Foster Garcia Gibson Grant Gupta Haddad Hansen Harlow Hayes Hughes Ibsen Ivanov
Jensen Kaplan Keller Khan Kimura Klein Lambert Larsen Lopez Marsh Mason Mendez Miller Moreno Morris Nash Newman Novak
Okafor Olsen Ortega Osman Palmer Parker Patel Perez Quinn Ramos Reed Rossi Sato Schmidt Shaw Silva Singh Stone Tanaka
Turner Vargas Wagner Walsh Weber Wong Young Zhang
""")
TOWNS = table("""
Alderton Ashford Barrowby Beachton Belmont Birchwood Blackpool Brackley Bridgeport Brookside Camden Cedarville Clayton
Clifton Coldwater Crestview Dayton Deerfield Dunmore Eastvale Edgewood Elmhurst Fairview Fernley Foxdale Glendale
Goldfield Grafton Greenhill Hadley Hampton Hartwell Hawthorn Hillcrest Holbrook Ironwood Kingsley Kirkton Lakewood
Langdon Linden Longview Lowell Mapleton Marlow Meadowbrook Midvale Milford Millbrook Monroe Newport Northgate Norwood
Oakdale Orchard Oxbow Pinecrest Plainview Portland Redcliff Ridgeway Riverton Rockport Rosewood Salem Sandford Shelby
Silverton Southport Springdale Stanton Stonebridge Summerfield Thornton Upton Vernon Waterford Westbury Whitby
Woodstock
""")
RIVERS = table("Arden Brenna Corran Delva Esker Finlo Galder Hyne Istra Kelda Lorne Tarrow")
DAYS = table("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = table("January February March April May June July August September October November December")
PLACES = table("school church library museum hotel theater stadium market park hospital")
COLORS = table("red blue green yellow white black brown gray pink purple")
VEHICLES = table("truck van bus taxi tractor motorbike")
BUILDINGS = table("flour mill,toy shop,fish market,music hall,paper factory,bus station,boat house,wine cellar", ",")
TREASURES = table(
    "gold coins,silver rings,old maps,glass vases,rare stamps,stone masks,bronze bells,oil paintings", ","
)
CLOTHES = table("jacket hat scarf backpack tent shirt")
SECTORS = table("Steel Foods Motors Paper Glass Textiles Energy Toys Shipping Tools")
PRODUCTS = table("garden chairs,baby bottles,desk lamps,winter coats,bread ovens,hair dryers,bike locks,tea pots", ",")
CAUSES = table("high prices,weak sales,cheap imports,heavy taxes,rising wages,new machines,fuel costs", ",")
FAULTS = table("sharp edges,loose screws,bad wiring,toxic paint,broken lids,weak handles", ",")
JOBS = table("nurse farmer baker driver teacher painter plumber student waiter lawyer")
CRIMES = table("robbing,damaging,burning down,breaking into", ",")
ANIMALS = table("dog cat horse goat cow donkey pony lamb")
TRAPS = table("well ditch pond cave pipe barn lake")
TITLES = table("Winter,Silent,Golden,Broken,Hidden,Distant,Paper,Crimson", ",")
NOUNS = table("Garden,Harbor,Mirror,Letters,Kingdom,Bridge,Summer,Lantern", ",")
FOODS = table("honey garlic cheese fish coffee bread soup rice")
EFFECTS = table("sleep memory hearing eyesight balance digestion")
BIRDS = table("snowy owl,black stork,golden eagle,marsh hawk,crested crane,purple heron,white pelican", ",")
POSITIONS = table("goalkeeper striker defender winger captain")
COATS = COLORS[4:8]  # of animals
A_YEAR_AGO = "[Last year|A year ago|One year ago]"


class Person(str):
    """A full name."""

    @property
    def surname(self) -> str:
        return self.split()[1]


def people(content: Content, count: int = 2) -> list[Person]:
    """Full names; no first name or surname occurs twice."""
    pairs = zip(content.sample(FIRST_NAMES, count), content.sample(LAST_NAMES, count), strict=True)
    return [Person(f"{first} {last}") for first, last in pairs]


def expand(text: str, wording: random.Random, usual: float = 0.0) -> str:
    """Choose among `[one|two]`: the first option with probability `usual`, otherwise any."""

    def choose(match: re.Match[str]) -> str:
        options = match[1].split("|")
        return options[0] if wording.random() < usual else wording.choice(options)

    return re.sub(r"\[([^]]*)\]", choose, text)


def story(wording: random.Random, highlights: str, lead: str, *others: str) -> Fields:
    """The lead, then the others in random order; sometimes the last of them, which must make sense alone, goes first."""
    following = list(others)
    opening = [following.pop()] if wording.random() < 0.3 else []
    wording.shuffle(following)
    article = " ".join(expand(sentence, wording) for sentence in (*opening, lead, *following))
    return {"article": article, "highlights": expand(highlights, wording, usual=0.8)}


def draw(content: Content, source: str, count: int, facts: dict[str, Any]) -> list[Any]:
    """`count` different values of a source in STORIES: first the one that matters, then the distractors.

    A source is a word list of this file, LOW..HIGH, a fact or number by itself, a sum of these, or a name known here.
    """
    if " + " in source:
        return [sum(draw(content, part, 1, facts)[0] for part in source.split(" + "))]
    if source in facts or source.isdigit():
        return [int(facts.get(source, source))]
    if source == "people":
        return people(content, count)
    if source == "company":
        return [f"{content.choice(LAST_NAMES)} {content.choice(SECTORS)}"]
    if source == "work":
        return [f"{content.choice(TITLES)} {content.choice(NOUNS)}"]
    if source == "trend":
        return ["rises" if facts["profit"] > facts["before"] else "falls"]
    if ".." in source:
        low, high = map(int, source.split(".."))
        return [content.int(low, high)] if count == 1 else content.sample(range(low, high + 1), count)
    options = globals()[source]
    return [content.choice(options)] if count == 1 else content.sample(options, count)


def news(text: str) -> Template:
    """The template of a story."""
    *head, first, second, lead, one, two, three = text.split("\n")
    name, _, draws = " ".join(map(str.strip, head)).partition(": ")

    def template(content: Content, wording: random.Random) -> Fields:
        facts: dict[str, Any] = {"a_year_ago": A_YEAR_AGO}
        for names, source in (line.split(" = ") for line in draws.split("; ")):
            facts.update(zip(names.split(), draw(content, source, len(names.split()), facts), strict=True))
        return story(wording, *(line.format_map(facts) for line in (f"{first}\n{second}", lead, one, two, three)))

    template.__name__ = name
    return template


# Draws (names of facts = source) are separated by semicolons; a line that begins with spaces goes on with them.
STORIES = """
flood: p q = people; t u = TOWNS; homes before = 40..990; helpers = 12..90; day = DAYS; place = PLACES
{t} flood hits {homes} homes {day}.
{p} and {helpers} helpers open {place} [shelter|refuge].
[A flood|High water] [damaged|hit] {homes} homes in {t} on {day} after [heavy rain|a night of rain].
{p} and {helpers} helpers opened a shelter in the {place} for families [without a home|in need].
{q}, who [runs a shop|owns a farm] in {u}, said the streets there were [still dry|safe].
{a_year_ago} a [smaller|similar] flood damaged {before} homes in {u}.

fire: p q = people; t u = TOWNS; crew before = 12..95; day = DAYS; building = BUILDINGS
{t} {building} burns {day}.
{crew} firefighters save {p} from [the roof|roof].
A [large|big] fire [destroyed|burned down] the {building} in {t} on {day}, [police|officials] said.
{crew} firefighters [fought|battled] the flames in {t} and saved {p} from the roof.
{q}, a fire expert from {u}, said the cause was [unknown|not yet known|still unclear].
{a_year_ago} {before} firefighters [fought|put out] a [smaller|similar] fire in {u}.

mayor: p q r = people; t u = TOWNS; second = 200..550; lead = 5..440; place = PLACES; votes = second + lead
{p} beats {q} with {votes} votes in {t} [election|vote].
{p.surname} promises new {place}.
{p} was elected mayor of {t} with {votes} votes, [officials said|the town said].
{q} [came second|finished second] with {second} votes and [accepted the result|called it fair].
{p.surname} promised [voters|people] a new {place} [for the town|within a year].
{r}, the mayor of {u}, said the [campaign|race] had been [long and hard|very close].

football: p q = people; t u = TOWNS; minute earlier = 11..89; lost = 0..3; margin = 1..3; day = DAYS;
  goals = lost + margin; before = margin + 1
{t} beat {u} {goals}-{lost} on {day}.
{p} scores [winner|winning goal] in minute {minute}.
{t} [beat|defeated] {u} {goals}-{lost} in [a lively|an exciting] football match on {day}.
{p} scored the winning goal in minute {minute} [to the joy of the home fans|with a fine header].
{q} of {u} [hit the post|missed a penalty] for the visitors in minute {earlier}.
{a_year_ago} {u} [beat|defeated] {t} {before}-{margin} [in the cup|in the same stadium].

transfer: p q = people; t u v = TOWNS; fee before = 3..95; shirt old = 2..40; position = POSITIONS
{t} sign {position} {p} from {u} for {fee} million.
{p.surname} [gets|takes] shirt {shirt}.
{t} [have signed|signed] the {position} {p} from {u} for {fee} million dollars.
{p.surname} will wear shirt {shirt} [next week|in the next match] [and is happy to come|and hopes to win].
{q} [used to wear|had worn] shirt {old} and was [loved by the fans|a favorite of the fans].
{a_year_ago} {t} [sold|lost] {q} to {v} for {before} million dollars.

bridge: p q = people; t u = TOWNS; cost before = 12..900; river = RIVERS; opening start = MONTHS
{t} bridge over {river} to cost {cost} million.
{p} [expects|plans] {opening} opening.
The new bridge over the {river} in {t} will cost {cost} million dollars.
{p}, the [chief engineer|head engineer], [expects|hopes] to open the bridge in {opening}.
{a_year_ago} the [price|cost] was [put|set] at {before} million dollars, and work began in {start}.
{q}, a driver from {u}, said the [bridge|crossing] is [badly needed|far too small].

theft: p q = people; t u = TOWNS; count before = 4..300; loot other = TREASURES; day = DAYS; color = COLORS;
  vehicle = VEHICLES
{t} museum loses {count} {loot} on {day}.
{p} saw {color} {vehicle} [leave|drive off].
Thieves [stole|took] {count} {loot} from the museum in {t} on {day}.
{p}, a [night guard|museum guard], saw a {color} {vehicle} leave [in a hurry|at high speed].
{q}, who [runs|leads] the museum in {u}, said [better locks|more guards] were needed.
{a_year_ago} thieves [stole|took] {before} {other} from a museum in {u}.

hiker: p q r = people; t u = TOWNS; hours before = 14..99; mount = RIVERS; color = COLORS; item = CLOTHES
{t} hiker {p} found after {hours} hours on Mount {mount}.
{q} [spotted|saw] {color} {item}.
{p}, a hiker from {t}, was found [alive|safe] after {hours} hours on Mount {mount}.
{q}, a [pilot|rescuer], spotted the {color} {item} of the hiker [in the snow|between the trees].
[Doctors|Nurses] said the hiker was [tired and hungry|cold and tired] but [not hurt|in good health].
{a_year_ago} {r}, a hiker from {u}, was [lost|missing] for {before} hours.

layoffs: p q = people; t u = TOWNS; cut kept = 40..950; firm = company; month = MONTHS; cause other = CAUSES
{firm} to cut {cut} jobs in {t} in {month}.
{p} blames {cause}.
{firm} will cut {cut} jobs at its [plant|factory] in {t} in {month}.
{p}, the head of the company, blamed {cause} for the [cuts|decision|lost jobs].
The [plant|factory] in {u} will [keep|not lose] its {kept} jobs [for now|this year].
{q}, a worker [for many years|with two children], said {other} were [the real problem|to blame].

profits: p q = people; t u = TOWNS; profit before = 11..950; firm = company; product = PRODUCTS; shops = 3..60;
  verb = trend
{firm} profit {verb} to {profit} million.
{p} plans {shops} shops in {t} for {product}.
{firm} made a profit of {profit} million dollars this year, [the company|a report] said online.
{a_year_ago} the profit was {before} million dollars.
{p}, the head of the company, plans to open {shops} shops in {t} to sell {product}.
{q}, a [banker|trader] from {u}, said [the year had been hard|trade was slow|prices were too high].

school: p q = people; t u = TOWNS; pupils before = 60..950; rooms other = 8..60; color = COLORS; day = DAYS
{t} opens {color} school of {rooms} rooms {day}.
{p} leads {pupils} pupils.
A new school with {pupils} pupils [opened|opened its doors] in {t} on {day}.
{p} [leads|will lead] the school, a {color} building of {rooms} rooms [near the river|by the park].
{q}, a parent from {u}, said the [walk|trip] was [too long|now much longer].
The old school [nearby |]in {u} had {before} pupils and {other} rooms.

festival: p q = people; t u = TOWNS; visitors before = 101..990; food = FOODS; bands other = 4..60; month = MONTHS
{t} {food} festival draws {visitors} visitors in {month}.
{p} [sings|performs] with {bands} bands.
The {food} festival in {t} drew {visitors} visitors in {month}, [the town|the organizers] said.
{p} sang on the [main|big] stage, and {bands} bands [played|joined in] [until late at night|in the sun].
{a_year_ago} it drew {before} visitors and {other} bands.
{q}, who sells [drinks|ice cream] in {u}, said the [weather|music] was [wonderful|perfect|great].

heat: p q = people; t u = TOWNS; before = 31..40; now = before + 1..8; day = DAYS; place = PLACES;
  bottles other = 60..950
{t} hits record {now} degrees {day}.
{p} gives {bottles} bottles at {place}.
The [heat|temperature] in {t} reached {now} degrees on {day}, [a new record|the highest on record].
{p} gave out {bottles} bottles of water at the {place} [to help people|to old people].
{q}, who [owns|runs] a shop in {u}, sold {other} bottles [that week|within hours].
The old record of {before} degrees was [set|measured] in {u} [last year|a year ago].

crash: p q = people; t u = TOWNS; road other = 11..99; ours theirs = VEHICLES; color = COLORS; hurt before = 2..19;
  day = DAYS
{hurt} hurt {day} as {color} {ours} hits {theirs} on Road {road} near {t}.
{p} drove {ours}.
A {color} {ours} hit a {theirs} on Road {road} near {t} on {day}, and {hurt} people were [hurt|injured].
{p} drove the {ours} and [told police|said] that the road was [wet|icy|dark].
{q}, a [nurse|doctor] from {u}, was the first to [stop and help|call the police].
{a_year_ago} a crash on Road {other} [hurt|injured] {before} people.

court: p q r = people; t u = TOWNS; months before = 4..90; ours other = BUILDINGS; job = JOBS; crime = CRIMES
{t} {job} {p} jailed {months} months for {crime} {ours}.
{q} was judge.
{p}, a {job} from {t}, was [sent to prison|jailed] for {months} months for {crime} a {ours}.
{q} was the judge and said the [crime|act] had [shocked|harmed] [the whole town|many people].
{r}, a lawyer from {u}, [called the sentence too hard|asked for a shorter sentence].
{a_year_ago} a thief got {before} months for {crime} a {other}.

recall: p q = people; t u = TOWNS; count before = 60..990; firm = company; ours other = PRODUCTS; fault old = FAULTS
{firm} recalls {count} {ours} over {fault}.
{p} of {t} [was hurt|got hurt].
{firm} has [recalled|called back] {count} {ours} because of {fault}, [the company said|a report said].
{p} of {t} was hurt [at home|in the kitchen] but is [now well|getting better].
{a_year_ago} the company [recalled|called back] {before} {other} because of {old}.
{q}, who sells {other} in {u}, said [buyers|customers] would [get their money back|be paid].

hospital: p q = people; t u = TOWNS; gift before = 2..95; job = JOBS; beds other = 12..300; month = MONTHS
{p}, {job}, gives {t} hospital {gift} million.
{beds} beds [planned for|planned by] {month}.
{p}, a [retired|former] {job}, gave {gift} million dollars to the hospital in {t}.
The [money|gift] will pay for a new wing with {beds} beds, planned for {month}.
The hospital in {u} [has|already has] {other} beds, [and more will come|but needs more|and they are full].
{a_year_ago} {q} gave {before} million dollars to the hospital in {u}.

lottery: p q = people; t u = TOWNS; prize before = 2..95; job other = JOBS; day = DAYS; color = COLORS;
  vehicle = VEHICLES
{t} {job} {p} wins {prize} million on {day}.
{p.surname} will buy {color} {vehicle}.
{p}, a {job} from {t}, won {prize} million dollars in the lottery on {day}.
{p.surname} will buy a {color} {vehicle} and [keep working|save the rest|travel], [neighbors|friends] said.
[The organizers|Officials] said [more people than ever|many people] had [bought a ticket|played this time].
{a_year_ago} {q}, a {other} from {u}, won {before} million dollars.

strike: p q = people; t u = TOWNS; workers before = 60..990; firm = company; offer = 2..9; day = DAYS;
  demand = offer + 2..15
{workers} {firm} workers strike in {t} on {day}.
{p} [wants|demands] {demand} percent more.
{workers} workers of {firm} went on strike in {t} on {day} [over pay|for better pay].
{p}, who leads the [workers|strike], wants {demand} percent more [pay|money].
{q}, who speaks for the company, [offered|has offered] only {offer} percent.
{a_year_ago} {before} workers [went on strike|stopped work] in {u} and [won|lost|gave up].

train: p q = people; t u v = TOWNS; late before = 21..240; animal other = ANIMALS; day = DAYS; riders = 60..700
{t} train delayed {late} minutes {day} by {animal}.
{p} [calms|helps] {riders} riders.
A {animal} on the line delayed the train from {t} to {u} by {late} minutes on {day}.
{p}, the [driver|conductor], calmed the {riders} riders with [tea and cake|jokes|songs].
{q}, who was waiting in {u}, [missed a wedding|was late for work|had to take a taxi].
{a_year_ago} a {other} [stopped|delayed] a train [near|in] {v} for {before} minutes.

rescue: p q r = people; t u = TOWNS; hours before = 2..48; animal other = ANIMALS; trap old = TRAPS; color = COATS
{p} saves {color} {animal} from {t} {trap} after {hours} hours.
{q} owns the {animal}.
{p} saved a {color} {animal} from a {trap} in {t} after {hours} hours [of hard work|of digging].
{q}, who owns the {animal}, [cried with joy|brought a cake for all helpers|was very thankful].
[A vet|A doctor] said [it was not hurt|it was fine] and [only needed food|could go home].
{a_year_ago} {r} [needed|worked] {before} hours to save a {other} from a {old} in {u}.

book: p q r = people; t u = TOWNS; pages before = 110..900; title = work; prize = RIVERS; job = JOBS
{p} wins {prize} Prize for {title}.
{pages} pages tell of {t} {job}.
{p} has won the {prize} Prize for the [novel|book] {title}, [the judges said|it was announced].
The {pages} pages of {title} tell of a {job} in {t} [during the war|who finds a secret].
{a_year_ago} the prize went to {q} for a [novel|book] of {before} pages.
{r}, who [sells books|runs a bookshop] in {u}, had [expected|hoped for] another winner.

film: p q r = people; t u = TOWNS; cost before = 3..250; title = work; month old = MONTHS; job = JOBS
{title} by {p} opens in {month}.
{q} plays {t} {job} in {cost} million film.
{title}, [the new film|a film] by {p}, opens in {month} and cost {cost} million dollars.
{q} plays a {job} from {t} who [loses a brother|goes to sea|looks for a lost child].
{r}, a [critic|writer] from {u}, called the [music|story] [too loud|moving|very good].
The last film by {p} opened in {old} and cost {before} million dollars.

marathon: p q = people; t u v = TOWNS; best = 128..170; runners before = 60..990; gap = 2..20; job = JOBS;
  slower = best + gap
{u} {job} {p} wins {t} marathon in {best} minutes.
{q} [second|comes second] among {runners} runners.
{p}, a {job} from {u}, won the marathon in {t} in {best} minutes.
{q} from {v} [came second|finished second] in {slower} minutes [after a fall|in the rain].
{runners} runners [took part|started] [this year|this time], [on a cold day|in warm weather].
{a_year_ago} {before} runners [took part|started], and the race was [won by a visitor|much slower].

study: p q = people; t u = TOWNS; tested before = 60..990; food other = FOODS; effect old = EFFECTS; gain = 3..45;
  job other_job = JOBS
{t} study of {tested} {job}s links {food} to {effect}.
{p} [finds|sees] {gain} percent gain.
A study of {tested} {job}s in {t} has [found|shown] that {food} [can improve|improved] {effect}.
{p}, who led the study, found a gain of {gain} percent [within a month|after ten weeks].
{q}, a [doctor|professor] in {u}, asked for [more tests|a longer test].
{a_year_ago} a study of {before} {other_job}s in {u} [found|showed] that {other} helped {old}.

tax: p q r = people; t u = TOWNS; against = 5..30; votes = against + 1..40; rate before = 2..95; vehicle = VEHICLES;
  place = PLACES
{t} council votes {votes}-{against} for {rate} dollar {vehicle} tax.
{p} [wants|plans] {place} repairs.
The council of {t} voted {votes}-{against} for a {vehicle} tax of {rate} dollars [a month|a year].
{p}, who [proposed|suggested] the tax, wants to [use the money|spend it] on {place} repairs.
{q}, who voted against it, [called the tax unfair|feared for small shops].
{a_year_ago} {r} [proposed|suggested] a tax of {before} dollars in {u}.

bird: p q = people; t u = TOWNS; watchers before = 30..900; ours other = BIRDS; job = JOBS; river = RIVERS
{p}, {job}, spots {ours} by {river} in {t}.
{watchers} watchers [come|arrive].
{p}, a {job}, spotted a [rare|very rare] {ours} by the river {river} in {t}.
{watchers} watchers came [with cameras|within hours|before sunset] [to see it|for a look].
{q}, who [studies|counts] birds in {u}, said the [weather|wind] had [led it here|changed its way].
{a_year_ago} a {other} in {u} [brought|drew] {before} watchers.

chess: p q r = people; t u = TOWNS; moves before = 18..95; prize other = 100..990; age = 9..80; day = DAYS
{p}, {age}, beats {q} in {moves} moves in {t} {day}.
{p.surname} [wins|gets] {prize} dollars.
{p}, {age}, beat {q} in {moves} moves in the chess final in {t} on {day}.
{p.surname} won {prize} dollars, and {q.surname} got [a book|a clock|a new board] [for second place|as a prize].
{a_year_ago} {r} won {other} dollars in {u} after {before} moves.
[The hall was full|The room was full], and [the crowd cheered|many people watched|fans stood outside].
"""

TEMPLATES: tuple[Template, ...] = tuple(map(news, STORIES.strip().split("\n\n")))
