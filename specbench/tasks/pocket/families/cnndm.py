"""Short news items with highlights, in the manner of CNN/DailyMail summarization.

Every article holds the facts of its highlights and distractors of the same kinds (another person, another town, last
year's figure); the roles in the sentences decide which belong. Highlights are telegraphic, so that nearly all of their
ROUGE-L must be earned by copying the right facts.

In sentences, `[one|two|three]` marks wordings that mean the same.
"""

import random
import re

from specbench.tasks.pocket.problems import Content, Fields, Template


def table(text: str, separator: str | None = None) -> list[str]:
    return [entry.strip() for entry in text.split(separator)]


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


def people(content: Content, count: int = 2) -> list[str]:
    """Full names; no first name or surname occurs twice."""
    pairs = zip(content.sample(FIRST_NAMES, count), content.sample(LAST_NAMES, count), strict=True)
    return [f"{first} {last}" for first, last in pairs]


def last(name: str) -> str:
    return name.split()[1]


def figures(content: Content, low: int, high: int, count: int = 2) -> list[int]:
    """Different numbers: first the one that matters, then the distractors."""
    return content.sample(range(low, high + 1), count)


def company(content: Content) -> str:
    return f"{content.choice(LAST_NAMES)} {content.choice(SECTORS)}"


def work_title(content: Content) -> str:
    return f"{content.choice(TITLES)} {content.choice(NOUNS)}"


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


def a_year_ago() -> str:
    return "[Last year|A year ago|One year ago]"


def flood(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (homes, before) = people(content), content.sample(TOWNS, 2), figures(content, 40, 990)
    helpers, day, place = content.int(12, 90), content.choice(DAYS), content.choice(PLACES)
    return story(
        wording,
        f"{t} flood hits {homes} homes {day}.\n{p} and {helpers} helpers open {place} [shelter|refuge].",
        f"[A flood|High water] [damaged|hit] {homes} homes in {t} on {day} after [heavy rain|a night of rain].",
        f"{p} and {helpers} helpers opened a shelter in the {place} for families [without a home|in need].",
        f"{q}, who [runs a shop|owns a farm] in {u}, said the streets there were [still dry|safe].",
        f"{a_year_ago()} a [smaller|similar] flood damaged {before} homes in {u}.",
    )


def fire(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (crew, before) = people(content), content.sample(TOWNS, 2), figures(content, 12, 95)
    day, building = content.choice(DAYS), content.choice(BUILDINGS)
    return story(
        wording,
        f"{t} {building} burns {day}.\n{crew} firefighters save {p} from [the roof|roof].",
        f"A [large|big] fire [destroyed|burned down] the {building} in {t} on {day}, [police|officials] said.",
        f"{crew} firefighters [fought|battled] the flames in {t} and saved {p} from the roof.",
        f"{q}, a fire expert from {u}, said the cause was [unknown|not yet known|still unclear].",
        f"{a_year_ago()} {before} firefighters [fought|put out] a [smaller|similar] fire in {u}.",
    )


def mayor(content: Content, wording: random.Random) -> Fields:
    (p, q, r), (t, u) = people(content, 3), content.sample(TOWNS, 2)
    second, lead, place = content.int(200, 550), content.int(5, 440), content.choice(PLACES)
    return story(
        wording,
        f"{p} beats {q} with {second + lead} votes in {t} [election|vote].\n{last(p)} promises new {place}.",
        f"{p} was elected mayor of {t} with {second + lead} votes, [officials said|the town said].",
        f"{q} [came second|finished second] with {second} votes and [accepted the result|called it fair].",
        f"{last(p)} promised [voters|people] a new {place} [for the town|within a year].",
        f"{r}, the mayor of {u}, said the [campaign|race] had been [long and hard|very close].",
    )


def football(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (minute, earlier) = people(content), content.sample(TOWNS, 2), figures(content, 11, 89)
    lost, margin, day = content.int(0, 3), content.int(1, 3), content.choice(DAYS)
    return story(
        wording,
        f"{t} beat {u} {lost + margin}-{lost} on {day}.\n{p} scores [winner|winning goal] in minute {minute}.",
        f"{t} [beat|defeated] {u} {lost + margin}-{lost} in [a lively|an exciting] football match on {day}.",
        f"{p} scored the winning goal in minute {minute} [to the joy of the home fans|with a fine header].",
        f"{q} of {u} [hit the post|missed a penalty] for the visitors in minute {earlier}.",
        f"{a_year_ago()} {u} [beat|defeated] {t} {margin + 1}-{margin} [in the cup|in the same stadium].",
    )


def transfer(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u, v), (fee, before) = people(content), content.sample(TOWNS, 3), figures(content, 3, 95)
    (shirt, old), position = figures(content, 2, 40), content.choice(POSITIONS)
    return story(
        wording,
        f"{t} sign {position} {p} from {u} for {fee} million.\n{last(p)} [gets|takes] shirt {shirt}.",
        f"{t} [have signed|signed] the {position} {p} from {u} for {fee} million dollars.",
        f"{last(p)} will wear shirt {shirt} [next week|in the next match] [and is happy to come|and hopes to win].",
        f"{q} [used to wear|had worn] shirt {old} and was [loved by the fans|a favorite of the fans].",
        f"{a_year_ago()} {t} [sold|lost] {q} to {v} for {before} million dollars.",
    )


def bridge(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (cost, before) = people(content), content.sample(TOWNS, 2), figures(content, 12, 900)
    river, (opening, start) = content.choice(RIVERS), content.sample(MONTHS, 2)
    return story(
        wording,
        f"{t} bridge over {river} to cost {cost} million.\n{p} [expects|plans] {opening} opening.",
        f"The new bridge over the {river} in {t} will cost {cost} million dollars.",
        f"{p}, the [chief engineer|head engineer], [expects|hopes] to open the bridge in {opening}.",
        f"{a_year_ago()} the [price|cost] was [put|set] at {before} million dollars, and work began in {start}.",
        f"{q}, a driver from {u}, said the [bridge|crossing] is [badly needed|far too small].",
    )


def theft(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (count, before) = people(content), content.sample(TOWNS, 2), figures(content, 4, 300)
    (loot, other), day = content.sample(TREASURES, 2), content.choice(DAYS)
    color, vehicle = content.choice(COLORS), content.choice(VEHICLES)
    return story(
        wording,
        f"{t} museum loses {count} {loot} on {day}.\n{p} saw {color} {vehicle} [leave|drive off].",
        f"Thieves [stole|took] {count} {loot} from the museum in {t} on {day}.",
        f"{p}, a [night guard|museum guard], saw a {color} {vehicle} leave [in a hurry|at high speed].",
        f"{q}, who [runs|leads] the museum in {u}, said [better locks|more guards] were needed.",
        f"{a_year_ago()} thieves [stole|took] {before} {other} from a museum in {u}.",
    )


def hiker(content: Content, wording: random.Random) -> Fields:
    (p, q, r), (t, u), (hours, before) = people(content, 3), content.sample(TOWNS, 2), figures(content, 14, 99)
    mount, color, item = content.choice(RIVERS), content.choice(COLORS), content.choice(CLOTHES)
    return story(
        wording,
        f"{t} hiker {p} found after {hours} hours on Mount {mount}.\n{q} [spotted|saw] {color} {item}.",
        f"{p}, a hiker from {t}, was found [alive|safe] after {hours} hours on Mount {mount}.",
        f"{q}, a [pilot|rescuer], spotted the {color} {item} of the hiker [in the snow|between the trees].",
        "[Doctors|Nurses] said the hiker was [tired and hungry|cold and tired] but [not hurt|in good health].",
        f"{a_year_ago()} {r}, a hiker from {u}, was [lost|missing] for {before} hours.",
    )


def layoffs(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (cut, kept) = people(content), content.sample(TOWNS, 2), figures(content, 40, 950)
    firm, month, (cause, other) = company(content), content.choice(MONTHS), content.sample(CAUSES, 2)
    return story(
        wording,
        f"{firm} to cut {cut} jobs in {t} in {month}.\n{p} blames {cause}.",
        f"{firm} will cut {cut} jobs at its [plant|factory] in {t} in {month}.",
        f"{p}, the head of the company, blamed {cause} for the [cuts|decision|lost jobs].",
        f"The [plant|factory] in {u} will [keep|not lose] its {kept} jobs [for now|this year].",
        f"{q}, a worker [for many years|with two children], said {other} were [the real problem|to blame].",
    )


def profits(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (profit, before) = people(content), content.sample(TOWNS, 2), figures(content, 11, 950)
    firm, product, shops = company(content), content.choice(PRODUCTS), content.int(3, 60)
    verb = "rises" if profit > before else "falls"
    return story(
        wording,
        f"{firm} profit {verb} to {profit} million.\n{p} plans {shops} shops in {t} for {product}.",
        f"{firm} made a profit of {profit} million dollars this year, [the company|a report] said online.",
        f"{a_year_ago()} the profit was {before} million dollars.",
        f"{p}, the head of the company, plans to open {shops} shops in {t} to sell {product}.",
        f"{q}, a [banker|trader] from {u}, said [the year had been hard|trade was slow|prices were too high].",
    )


def school(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (pupils, before) = people(content), content.sample(TOWNS, 2), figures(content, 60, 950)
    (rooms, other), color, day = figures(content, 8, 60), content.choice(COLORS), content.choice(DAYS)
    return story(
        wording,
        f"{t} opens {color} school of {rooms} rooms {day}.\n{p} leads {pupils} pupils.",
        f"A new school with {pupils} pupils [opened|opened its doors] in {t} on {day}.",
        f"{p} [leads|will lead] the school, a {color} building of {rooms} rooms [near the river|by the park].",
        f"{q}, a parent from {u}, said the [walk|trip] was [too long|now much longer].",
        f"The old school [nearby |]in {u} had {before} pupils and {other} rooms.",
    )


def festival(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (visitors, before) = people(content), content.sample(TOWNS, 2), figures(content, 101, 990)
    food, (bands, other), month = content.choice(FOODS), figures(content, 4, 60), content.choice(MONTHS)
    return story(
        wording,
        f"{t} {food} festival draws {visitors} visitors in {month}.\n{p} [sings|performs] with {bands} bands.",
        f"The {food} festival in {t} drew {visitors} visitors in {month}, [the town|the organizers] said.",
        f"{p} sang on the [main|big] stage, and {bands} bands [played|joined in] [until late at night|in the sun].",
        f"{a_year_ago()} it drew {before} visitors and {other} bands.",
        f"{q}, who sells [drinks|ice cream] in {u}, said the [weather|music] was [wonderful|perfect|great].",
    )


def heat(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), before = people(content), content.sample(TOWNS, 2), content.int(31, 40)
    now, day, place = before + content.int(1, 8), content.choice(DAYS), content.choice(PLACES)
    bottles, other = figures(content, 60, 950)
    return story(
        wording,
        f"{t} hits record {now} degrees {day}.\n{p} gives {bottles} bottles at {place}.",
        f"The [heat|temperature] in {t} reached {now} degrees on {day}, [a new record|the highest on record].",
        f"{p} gave out {bottles} bottles of water at the {place} [to help people|to old people].",
        f"{q}, who [owns|runs] a shop in {u}, sold {other} bottles [that week|within hours].",
        f"The old record of {before} degrees was [set|measured] in {u} [last year|a year ago].",
    )


def crash(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (road, other) = people(content), content.sample(TOWNS, 2), figures(content, 11, 99)
    (ours, theirs), color = content.sample(VEHICLES, 2), content.choice(COLORS)
    (hurt, before), day = figures(content, 2, 19), content.choice(DAYS)
    return story(
        wording,
        f"{hurt} hurt {day} as {color} {ours} hits {theirs} on Road {road} near {t}.\n{p} drove {ours}.",
        f"A {color} {ours} hit a {theirs} on Road {road} near {t} on {day}, and {hurt} people were [hurt|injured].",
        f"{p} drove the {ours} and [told police|said] that the road was [wet|icy|dark].",
        f"{q}, a [nurse|doctor] from {u}, was the first to [stop and help|call the police].",
        f"{a_year_ago()} a crash on Road {other} [hurt|injured] {before} people.",
    )


def court(content: Content, wording: random.Random) -> Fields:
    (p, q, r), (t, u), (months, before) = people(content, 3), content.sample(TOWNS, 2), figures(content, 4, 90)
    (ours, other), job, crime = content.sample(BUILDINGS, 2), content.choice(JOBS), content.choice(CRIMES)
    return story(
        wording,
        f"{t} {job} {p} jailed {months} months for {crime} {ours}.\n{q} was judge.",
        f"{p}, a {job} from {t}, was [sent to prison|jailed] for {months} months for {crime} a {ours}.",
        f"{q} was the judge and said the [crime|act] had [shocked|harmed] [the whole town|many people].",
        f"{r}, a lawyer from {u}, [called the sentence too hard|asked for a shorter sentence].",
        f"{a_year_ago()} a thief got {before} months for {crime} a {other}.",
    )


def recall(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (count, before) = people(content), content.sample(TOWNS, 2), figures(content, 60, 990)
    firm, (ours, other), (fault, old) = company(content), content.sample(PRODUCTS, 2), content.sample(FAULTS, 2)
    return story(
        wording,
        f"{firm} recalls {count} {ours} over {fault}.\n{p} of {t} [was hurt|got hurt].",
        f"{firm} has [recalled|called back] {count} {ours} because of {fault}, [the company said|a report said].",
        f"{p} of {t} was hurt [at home|in the kitchen] but is [now well|getting better].",
        f"{a_year_ago()} the company [recalled|called back] {before} {other} because of {old}.",
        f"{q}, who sells {other} in {u}, said [buyers|customers] would [get their money back|be paid].",
    )


def hospital(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (gift, before) = people(content), content.sample(TOWNS, 2), figures(content, 2, 95)
    job, (beds, other), month = content.choice(JOBS), figures(content, 12, 300), content.choice(MONTHS)
    return story(
        wording,
        f"{p}, {job}, gives {t} hospital {gift} million.\n{beds} beds [planned for|planned by] {month}.",
        f"{p}, a [retired|former] {job}, gave {gift} million dollars to the hospital in {t}.",
        f"The [money|gift] will pay for a new wing with {beds} beds, planned for {month}.",
        f"The hospital in {u} [has|already has] {other} beds, [and more will come|but needs more|and they are full].",
        f"{a_year_ago()} {q} gave {before} million dollars to the hospital in {u}.",
    )


def lottery(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (prize, before) = people(content), content.sample(TOWNS, 2), figures(content, 2, 95)
    (job, other), day = content.sample(JOBS, 2), content.choice(DAYS)
    color, vehicle = content.choice(COLORS), content.choice(VEHICLES)
    return story(
        wording,
        f"{t} {job} {p} wins {prize} million on {day}.\n{last(p)} will buy {color} {vehicle}.",
        f"{p}, a {job} from {t}, won {prize} million dollars in the lottery on {day}.",
        f"{last(p)} will buy a {color} {vehicle} and [keep working|save the rest|travel], [neighbors|friends] said.",
        "[The organizers|Officials] said [more people than ever|many people] had [bought a ticket|played this time].",
        f"{a_year_ago()} {q}, a {other} from {u}, won {before} million dollars.",
    )


def strike(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (workers, before) = people(content), content.sample(TOWNS, 2), figures(content, 60, 990)
    firm, offer, day = company(content), content.int(2, 9), content.choice(DAYS)
    demand = offer + content.int(2, 15)
    return story(
        wording,
        f"{workers} {firm} workers strike in {t} on {day}.\n{p} [wants|demands] {demand} percent more.",
        f"{workers} workers of {firm} went on strike in {t} on {day} [over pay|for better pay].",
        f"{p}, who leads the [workers|strike], wants {demand} percent more [pay|money].",
        f"{q}, who speaks for the company, [offered|has offered] only {offer} percent.",
        f"{a_year_ago()} {before} workers [went on strike|stopped work] in {u} and [won|lost|gave up].",
    )


def train(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u, v), (late, before) = people(content), content.sample(TOWNS, 3), figures(content, 21, 240)
    (animal, other), day, riders = content.sample(ANIMALS, 2), content.choice(DAYS), content.int(60, 700)
    return story(
        wording,
        f"{t} train delayed {late} minutes {day} by {animal}.\n{p} [calms|helps] {riders} riders.",
        f"A {animal} on the line delayed the train from {t} to {u} by {late} minutes on {day}.",
        f"{p}, the [driver|conductor], calmed the {riders} riders with [tea and cake|jokes|songs].",
        f"{q}, who was waiting in {u}, [missed a wedding|was late for work|had to take a taxi].",
        f"{a_year_ago()} a {other} [stopped|delayed] a train [near|in] {v} for {before} minutes.",
    )


def rescue(content: Content, wording: random.Random) -> Fields:
    (p, q, r), (t, u), (hours, before) = people(content, 3), content.sample(TOWNS, 2), figures(content, 2, 48)
    (animal, other), (trap, old) = content.sample(ANIMALS, 2), content.sample(TRAPS, 2)
    color = content.choice(COLORS[4:8])
    return story(
        wording,
        f"{p} saves {color} {animal} from {t} {trap} after {hours} hours.\n{q} owns the {animal}.",
        f"{p} saved a {color} {animal} from a {trap} in {t} after {hours} hours [of hard work|of digging].",
        f"{q}, who owns the {animal}, [cried with joy|brought a cake for all helpers|was very thankful].",
        "[A vet|A doctor] said [it was not hurt|it was fine] and [only needed food|could go home].",
        f"{a_year_ago()} {r} [needed|worked] {before} hours to save a {other} from a {old} in {u}.",
    )


def book(content: Content, wording: random.Random) -> Fields:
    (p, q, r), (t, u), (pages, before) = people(content, 3), content.sample(TOWNS, 2), figures(content, 110, 900)
    title, prize, job = work_title(content), content.choice(RIVERS), content.choice(JOBS)
    return story(
        wording,
        f"{p} wins {prize} Prize for {title}.\n{pages} pages tell of {t} {job}.",
        f"{p} has won the {prize} Prize for the [novel|book] {title}, [the judges said|it was announced].",
        f"The {pages} pages of {title} tell of a {job} in {t} [during the war|who finds a secret].",
        f"{a_year_ago()} the prize went to {q} for a [novel|book] of {before} pages.",
        f"{r}, who [sells books|runs a bookshop] in {u}, had [expected|hoped for] another winner.",
    )


def film(content: Content, wording: random.Random) -> Fields:
    (p, q, r), (t, u), (cost, before) = people(content, 3), content.sample(TOWNS, 2), figures(content, 3, 250)
    title, (month, old), job = work_title(content), content.sample(MONTHS, 2), content.choice(JOBS)
    return story(
        wording,
        f"{title} by {p} opens in {month}.\n{q} plays {t} {job} in {cost} million film.",
        f"{title}, [the new film|a film] by {p}, opens in {month} and cost {cost} million dollars.",
        f"{q} plays a {job} from {t} who [loses a brother|goes to sea|looks for a lost child].",
        f"{r}, a [critic|writer] from {u}, called the [music|story] [too loud|moving|very good].",
        f"The last film by {p} opened in {old} and cost {before} million dollars.",
    )


def marathon(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u, v), best = people(content), content.sample(TOWNS, 3), content.int(128, 170)
    (runners, before), gap, job = figures(content, 60, 990), content.int(2, 20), content.choice(JOBS)
    return story(
        wording,
        f"{u} {job} {p} wins {t} marathon in {best} minutes.\n{q} [second|comes second] among {runners} runners.",
        f"{p}, a {job} from {u}, won the marathon in {t} in {best} minutes.",
        f"{q} from {v} [came second|finished second] in {best + gap} minutes [after a fall|in the rain].",
        f"{runners} runners [took part|started] [this year|this time], [on a cold day|in warm weather].",
        f"{a_year_ago()} {before} runners [took part|started], and the race was [won by a visitor|much slower].",
    )


def study(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (tested, before) = people(content), content.sample(TOWNS, 2), figures(content, 60, 990)
    (food, other), (effect, old), gain = content.sample(FOODS, 2), content.sample(EFFECTS, 2), content.int(3, 45)
    job, other_job = content.sample(JOBS, 2)
    return story(
        wording,
        f"{t} study of {tested} {job}s links {food} to {effect}.\n{p} [finds|sees] {gain} percent gain.",
        f"A study of {tested} {job}s in {t} has [found|shown] that {food} [can improve|improved] {effect}.",
        f"{p}, who led the study, found a gain of {gain} percent [within a month|after ten weeks].",
        f"{q}, a [doctor|professor] in {u}, asked for [more tests|a longer test].",
        f"{a_year_ago()} a study of {before} {other_job}s in {u} [found|showed] that {other} helped {old}.",
    )


def tax(content: Content, wording: random.Random) -> Fields:
    (p, q, r), (t, u), against = people(content, 3), content.sample(TOWNS, 2), content.int(5, 30)
    votes, (rate, before) = against + content.int(1, 40), figures(content, 2, 95)
    vehicle, place = content.choice(VEHICLES), content.choice(PLACES)
    return story(
        wording,
        f"{t} council votes {votes}-{against} for {rate} dollar {vehicle} tax.\n{p} [wants|plans] {place} repairs.",
        f"The council of {t} voted {votes}-{against} for a {vehicle} tax of {rate} dollars [a month|a year].",
        f"{p}, who [proposed|suggested] the tax, wants to [use the money|spend it] on {place} repairs.",
        f"{q}, who voted against it, [called the tax unfair|feared for small shops].",
        f"{a_year_ago()} {r} [proposed|suggested] a tax of {before} dollars in {u}.",
    )


def bird(content: Content, wording: random.Random) -> Fields:
    (p, q), (t, u), (watchers, before) = people(content), content.sample(TOWNS, 2), figures(content, 30, 900)
    (ours, other), job, river = content.sample(BIRDS, 2), content.choice(JOBS), content.choice(RIVERS)
    return story(
        wording,
        f"{p}, {job}, spots {ours} by {river} in {t}.\n{watchers} watchers [come|arrive].",
        f"{p}, a {job}, spotted a [rare|very rare] {ours} by the river {river} in {t}.",
        f"{watchers} watchers came [with cameras|within hours|before sunset] [to see it|for a look].",
        f"{q}, who [studies|counts] birds in {u}, said the [weather|wind] had [led it here|changed its way].",
        f"{a_year_ago()} a {other} in {u} [brought|drew] {before} watchers.",
    )


def chess(content: Content, wording: random.Random) -> Fields:
    (p, q, r), (t, u), (moves, before) = people(content, 3), content.sample(TOWNS, 2), figures(content, 18, 95)
    (prize, other), age, day = figures(content, 100, 990), content.int(9, 80), content.choice(DAYS)
    return story(
        wording,
        f"{p}, {age}, beats {q} in {moves} moves in {t} {day}.\n{last(p)} [wins|gets] {prize} dollars.",
        f"{p}, {age}, beat {q} in {moves} moves in the chess final in {t} on {day}.",
        f"{last(p)} won {prize} dollars, and {last(q)} got [a book|a clock|a new board] [for second place|as a prize].",
        f"{a_year_ago()} {r} won {other} dollars in {u} after {before} moves.",
        "[The hall was full|The room was full], and [the crowd cheered|many people watched|fans stood outside].",
    )


TEMPLATES: tuple[Template, ...] = (
    *(flood, fire, mayor, football, transfer, bridge, theft, hiker, layoffs, profits, school, festival, heat, crash),
    *(court, recall, hospital, lottery, strike, train, rescue, book, film, marathon, study, tax, bird, chess),
)
