"use strict";
const $ = (id) => document.getElementById(id);

function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}

function options(select, values, names = values) {
  select.replaceChildren(...values.map((value, i) => Object.assign(make("option", "", names[i]), { value })));
}

// ---- packed data

async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const utf8 = (bytes) => new TextDecoder().decode(bytes);

function numbers(bytes) {
  const found = new Uint32Array(bytes.length);
  let count = 0, value = 0, shift = 0;
  for (const byte of bytes) {
    value |= (byte & 127) << shift;
    if (byte & 128) shift += 7;
    else { found[count++] = value; value = shift = 0; }
  }
  return found.subarray(0, count);
}

// ---- plots

function drawPlots(plots) {
  const config = { responsive: true, displaylogo: false, toImageButtonOptions: { format: "svg" } };
  config.modeBarButtonsToRemove = ["lasso2d", "select2d", "autoScale2d"];
  const chosen = $("plot-task");
  const draw = () => {
    for (const plot of plots) {
      const names = Object.keys(plot.views);
      const name = names.includes(chosen?.value) ? chosen.value : names[0];
      const view = plot.views[name], place = $("plot-" + plot.name);
      $("of-" + plot.name).textContent = "· " + name;
      if (view.data.length) Plotly.react(place, view.data, view.layout, config);
      else { Plotly.purge(place); place.replaceChildren(make("p", "note", plot.lacks)); }
    }
  };
  chosen?.addEventListener("change", draw);
  draw();
}

// ---- documents

function readTraces(packed) {
  const length = new DataView(packed.buffer).getUint32(0, true);
  const head = JSON.parse(utf8(packed.subarray(4, 4 + length)));
  const streams = {};
  let at = 4 + length;
  for (const [name, size] of Object.entries(head.streams)) {
    streams[name] = numbers(packed.subarray(at, at + size));
    at += size;
  }
  const places = Object.fromEntries(Object.keys(streams).map((name) => [name, 0]));
  const next = (name) => streams[name][places[name]++];
  const text = (name) => head.texts[next(name)];
  const note = (name) => head.notes[next(name)];
  const several = (count, read) => Array.from({ length: count }, read);

  function piece() {
    const origin = next("origin"), told = { text: text("text"), origin: head.origins[origin % head.more] };
    if (origin >= head.more) Object.assign(told, { cut: text("cut"), instead: text("instead"), ratio: note("ratio") });
    return told;
  }

  function step(number) {
    const told = { number, drafted: next("drafted"), time: note("time") };
    told.pieces = several(next("size"), piece);
    const [rejected, unread, after] = told.drafted ? several(3, () => next("dropped")) : [0, 0, 0];
    const refused = () => ({ text: text("rejected"), own: text("own"), ratio: note("rejected_ratio") });
    told.rejected = several(rejected, refused);
    told.unread = several(unread, () => text("unread"));
    told.after = several(after, () => text("after"));
    return told;
  }

  // Where each trace begins in the streams; they are read when they are asked for.
  const starts = Array.from(streams.steps, () => {
    const start = { ...places };
    for (let left = next("steps"); left; left--) {
      const drafted = next("drafted"), size = next("size");
      places.time++;
      places.text += size;
      for (let i = 0; i < size; i++) {
        if (next("origin") >= head.more) { places.cut++; places.instead++; places.ratio++; }
      }
      if (drafted) {
        const [rejected, unread, after] = [next("dropped"), next("dropped"), next("dropped")];
        places.rejected += rejected; places.own += rejected; places.rejected_ratio += rejected;
        places.unread += unread;
        places.after += after;
      }
    }
    return start;
  });
  head.trace = (index) => {
    Object.assign(places, starts[index]);
    return Array.from({ length: next("steps") }, (_, number) => step(number));
  };
  return head;
}

// Signs for what would not be seen: newlines, tabs, control characters, and marks that turn what follows them round.
const acting = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|[\u{e0000}-\u{e007f}]/gu;
const code = (char) => `<U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`;
const sign = (char) => char === "\n" ? "⏎\n" : char === "\t" ? "⇥\t"
  : char < " " ? String.fromCharCode(0x2400 + char.charCodeAt(0)) : code(char);
const seen = (text) => text.replace(acting, sign);
const shownAs = (text) => text.replace(acting, (char) => (char === "\n" || char === "\t" ? char : sign(char)));
const inLine = (text) => seen(text).replaceAll("\n", "");
const percent = (value) => (100 * value).toFixed(0) + " %";

const ENDS = { eos: "ended by EOS", stop: "ended by a stop string", length: "ended by the length limit" };

function sampleOf(told, [task, doc, label, trace, score, rates, time, finish, error], scored) {
  const [accept, tau, discard, verify, speed] = rates;
  const facts = [];
  if (score !== null) facts.push(`score ${score}` + (scored ? ` (${scored})` : ""));
  if (accept != null) facts.push(`accept ${percent(accept)}`);
  if (tau != null) facts.push(`τ ${tau.toFixed(2)}`);
  if (discard != null) facts.push(`discard ${discard.toFixed(2)}`);
  if (verify != null) facts.push(`verify ${verify.toFixed(2)}`);
  if (speed != null) facts.push(`${speed.toFixed(0)} tok/s`);
  if (time) facts.push(`${time} ms after the prefill`);
  if (finish === "error") facts.push(`failed: ${error}`);
  else if (finish in ENDS) facts.push(ENDS[finish]);
  const steps = trace < 0 ? [] : told.trace(trace);
  const pieces = steps.flatMap((step) => step.pieces);
  if (steps.length) facts.unshift(`${pieces.length} tokens in ${steps.length - 1} round${steps.length === 2 ? "" : "s"}`);
  return { label: told.labels[label], facts, steps, pieces, failed: finish === "error" };
}

function drawSample(sample, parting) {
  const panel = make("div", "sample");
  panel.append(make("h3", "", sample.label), make("p", "note", sample.facts.join(" · ")));
  const area = make("div", "text");
  let count = 0, line = null, alone = null;
  for (const step of sample.steps) {
    const undrafted = step.number > 0 && !step.drafted;
    if (line && undrafted && alone) {
      alone.last = step.number;
      alone.time += Number(step.time);
    } else {
      line = make("div", "round");
      alone = undrafted ? { first: step.number, last: step.number, time: Number(step.time) } : null;
      line.append(make("span", "number-of", step.number), make("span", "time-of"), make("span", "pieces"));
      area.append(line);
    }
    const [numberOf, timeOf, pieces] = line.children;
    if (alone && alone.last > alone.first) numberOf.textContent = `${alone.first}–${alone.last}`;
    timeOf.textContent = step.time === "" ? "" : `${alone ? +alone.time.toPrecision(3) : step.time} ms`;
    step.pieces.forEach((piece, i) => {
      if (count++ === parting) pieces.append(make("span", "parts", "they part here ▸"));
      const last = i === step.pieces.length - 1;
      if (last && step.rejected.length) pieces.append(...refused(step, piece));
      pieces.append(make("span", piece.origin, seen(piece.text)));
      if (piece.origin === "rescued") pieces.append(make("small", "dropped", `${piece.ratio} for ${inLine(piece.instead).trim()}`));
      if (piece.cut) pieces.append(make("span", "cut", inLine(piece.cut)));
    });
    for (const text of step.unread) pieces.append(make("del", "unread dropped", inLine(text)));
    for (const text of step.after) pieces.append(make("span", "cut dropped", inLine(text)));
  }
  if (parting !== null && parting >= count && !sample.failed && sample.steps.length) {
    area.append(make("span", "parts", "ends here"));
  }
  if (!sample.steps.length) area.append(make("span", "note", sample.failed ? "No text: it failed." : "There is no trace of it."));
  panel.append(area);
  return panel;
}

function refused(step, correction) {
  return step.rejected.flatMap((one) => {
    const own = one.own === correction.text ? "" : ` against ${inLine(one.own).trim()}`;
    return [make("del", "rejected dropped", inLine(one.text)), make("small", "dropped", one.ratio + own)];
  });
}

function firstDifference(one, other) {
  const same = (a, b) => a && b && a.text === b.text && a.cut === b.cut;
  const most = Math.max(one.pieces.length, other.pieces.length);
  for (let i = 0; i < most; i++) if (!same(one.pieces[i], other.pieces[i])) return i;
  return null;
}

function says(sample, at) {
  const piece = sample.pieces[at];
  return piece ? `${sample.label} goes on with “${inLine(piece.text || piece.cut || "")}”` : `${sample.label} has ended`;
}

function drawDocuments(told) {
  const [task, doc, one, two] = ["doc-task", "doc-id", "doc-one", "doc-two"].map($);
  const of = (t, d) => told.samples.filter((sample) => sample[0] === t && (d === undefined || sample[1] === d));
  options(task, told.tasks.map((_, i) => i), told.tasks.map(([name]) => name));

  function chooseTask() {
    const found = new Map();
    for (const sample of of(Number(task.value))) {
      if (!found.has(sample[1])) found.set(sample[1], []);
      found.get(sample[1]).push(sample);
    }
    const ids = [...found.keys()].sort((a, b) => a - b);
    options(doc, ids, ids.map((id) => {
      const scores = new Set(found.get(id).map((sample) => sample[4]).filter((score) => score !== null));
      const failed = found.get(id).some((sample) => sample[7] === "error");
      return id + (scores.size > 1 ? " · scores differ" : "") + (failed ? " · one failed" : "");
    }));
    chooseDocument();
  }

  function chooseDocument() {
    const kept = [one.value, two.value], there = of(Number(task.value), Number(doc.value)).map((sample) => sample[2]);
    there.sort((a, b) => a - b);
    const names = there.map((label) => told.labels[label]);
    options(one, there, names);
    options(two, ["", ...there], ["none", ...names]);
    one.value = there.includes(Number(kept[0])) && kept[0] !== "" ? kept[0] : there.at(-1);
    two.value = there.includes(Number(kept[1])) && kept[1] !== "" ? kept[1] : "";
    $("doc-back").disabled = doc.selectedIndex <= 0;
    $("doc-on").disabled = doc.selectedIndex >= doc.options.length - 1;
    draw();
  }

  const abouts = new Map(told.about.map(([t, d, ...rest]) => [`${t} ${d}`, rest]));

  function drawAbout() {
    const about = abouts.get(`${task.value} ${doc.value}`);
    $("about").hidden = !about;
    $("about-none").hidden = Boolean(about);
    if (!about) return;
    const [prompt, leftOut, reference, category] = about;
    const facts = [];
    if (category) facts.push(inLine(category));
    if (leftOut) facts.push(`its end; ${leftOut} characters before it are in the run's documents.parquet`);
    $("about-prompt").textContent = facts.length ? "· " + facts.join(" · ") : "";
    $("prompt").textContent = shownAs(prompt);
    $("about-reference").hidden = reference === null;
    $("reference").textContent = shownAs(reference ?? "");
  }

  function draw() {
    drawAbout();
    const here = of(Number(task.value), Number(doc.value)), scored = told.tasks[Number(task.value)][1];
    const pick = (select) => here.find((sample) => select.value !== "" && sample[2] === Number(select.value));
    const shown = [pick(one), pick(two)].filter(Boolean).map((sample) => sampleOf(told, sample, scored));
    let parting = null, sentence = "";
    if (shown.length === 2 && shown.every((sample) => sample.steps.length)) {
      parting = firstDifference(...shown);
      const before = parting ? `The first ${parting} tokens are the same; then ` : "They differ from the first token on: ";
      sentence = parting === null ? "Both texts are the same, token for token."
        : before + shown.map((sample) => says(sample, parting)).join(", ") + ".";
    }
    $("parting").textContent = sentence;
    $("traces").replaceChildren(...shown.map((sample) => drawSample(sample, parting)));
  }

  const step = (by) => { doc.selectedIndex += by; chooseDocument(); };
  task.addEventListener("change", chooseTask);
  doc.addEventListener("change", chooseDocument);
  one.addEventListener("change", draw);
  two.addEventListener("change", draw);
  $("doc-back").addEventListener("click", () => step(-1));
  $("doc-on").addEventListener("click", () => step(1));
  const marks = () => {
    $("traces").classList.toggle("rounds", $("show-rounds").checked);
    $("traces").classList.toggle("no-dropped", !$("show-dropped").checked);
  };
  $("show-rounds").addEventListener("change", marks);
  $("show-dropped").addEventListener("change", marks);
  marks();
  if (told.samples.length) { chooseTask(); $("chooser").hidden = false; }
}

// ---- start

addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("#settings details")) one.open = true;
});

async function start() {
  drawDocuments(readTraces(await unpack("data-traces")));
  const library = make("script");
  library.nonce = document.currentScript?.nonce || document.querySelector("script[nonce]").nonce;
  library.textContent = utf8(await unpack("data-plotly"));
  document.head.append(library);
  drawPlots(JSON.parse(utf8(await unpack("data-plots"))));
  for (const line of document.querySelectorAll(".scripted")) line.classList.add("done");
}

start().then(
  () => { document.body.dataset.ready = "yes"; },
  (error) => { document.body.dataset.ready = "failed"; console.error(error); },
);
