"use strict";
// The page keeps one code, the "present" one. Everything that changes it goes through `go`, which asks for its image.

const $ = (id) => document.getElementById(id);
const state = { about: null, bits: "", start: "", image: null, startImage: null, past: [], seed: 0, flips: null, values: {} };

// --- asking -------------------------------------------------------------------------------------------------------

async function ask(what, question = {}) {
  const reply = await fetch(`/api/${what}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question),
  });
  const answer = await reply.json().catch(() => ({ error: `the server answered ${reply.status}` }));
  if (!reply.ok) throw new Error(answer.error);
  return answer;
}

function problem(error) {
  const lost = error instanceof TypeError; // fetch could not reach the server
  $("problem").textContent = lost ? "The viewer has ended: start `dvaepp view` again and reload." : sentence(error.message);
  $("problem").hidden = false;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

// Runs one job at a time for each button: it is busy meanwhile, and what fails is told.
async function busy(button, job) {
  if (button?.getAttribute("aria-busy") === "true") return;
  button?.setAttribute("aria-busy", "true");
  try { await job(); $("problem").hidden = true; } catch (error) { problem(error); }
  finally { button?.removeAttribute("aria-busy"); }
}

const newSeed = () => Math.floor(Math.random() * 2 ** 31);

// --- images -------------------------------------------------------------------------------------------------------

function unpack(text) {
  const { channels, height, width } = state.about.image;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const size = channels * height * width;
  return Array.from({ length: bytes.length / size }, (_, n) => bytes.subarray(n * size, (n + 1) * size));
}

function draw(canvas, colour) {
  const { height, width } = state.about.image;
  canvas.width = width; canvas.height = height;
  const picture = new ImageData(width, height);
  for (let n = 0; n < width * height; n++) picture.data.set([...colour(n), 255], 4 * n);
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

const grey = (pixels, n) => {
  const c = state.about.image.channels;
  return [0, 1, 2].map((k) => pixels[c * n + (c === 1 ? 0 : k)]);
};
const show = (canvas, pixels) => draw(canvas, (n) => grey(pixels, n));
const level = (pixels, n) => grey(pixels, n).reduce((sum, each) => sum + each, 0) / 3;

// What got lighter since the start is orange, what got darker blue.
function showChange(canvas, before, after) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const ground = dark ? [38, 46, 55] : [232, 236, 241];
  const ends = dark ? [[242, 162, 97], [110, 174, 250]] : [[181, 80, 11], [29, 102, 193]];
  draw(canvas, (n) => {
    const by = (level(after, n) - level(before, n)) / 255;
    const end = ends[by > 0 ? 0 : 1], much = Math.sqrt(Math.abs(by));
    return ground.map((each, k) => Math.round(each + much * (end[k] - each)));
  });
}

// A sheet of images, each a button; `captions` may be empty.
function fillSheet(sheet, images, names, choose, captions = []) {
  sheet.replaceChildren(...images.map((pixels, n) => {
    const button = document.createElement("button"), canvas = document.createElement("canvas");
    button.type = "button"; button.setAttribute("aria-label", names(n));
    show(canvas, pixels); button.append(canvas);
    if (captions[n]) { const small = document.createElement("small"); small.textContent = captions[n]; button.append(small); }
    if (choose) button.addEventListener("click", () => choose(n)); else button.disabled = true;
    return button;
  }));
}

// --- the present code ---------------------------------------------------------------------------------------------

// Runs a job, and once more where it was asked for meanwhile: many quick changes become few questions, the newest last.
function latest(job) {
  let running = false, again = false;
  return async () => {
    again = true;
    if (running) return;
    running = true;
    try { while (again) { again = false; await job(); } } catch (error) { problem(error); } finally { running = false; }
  };
}

const refresh = latest(async () => {
  const bits = state.bits, answer = await ask("code", { bits, seed: state.seed });
  state.image = unpack(answer.image)[0];
  state.flips = answer.flips;
  if (bits === state.start || !state.startImage) state.startImage = state.image;
  showPresent(bits, answer);
  $("problem").hidden = true;
  follow();
});
const follow = latest(async () => listeners[current()]?.());

function showPresent(bits, answer) {
  show($("image"), state.image); show($("before"), state.startImage); showChange($("change"), state.startImage, state.image);
  $("changed").textContent = [...bits].filter((bit, n) => bit !== state.start[n]).length;
  if (answer.energy !== null) {
    const { log_z } = state.about;
    const unit = document.createElement("small"); unit.textContent = " nats";
    $("energy").replaceChildren(fixed(log_z === null ? answer.energy : -answer.energy - log_z), unit);
  }
  document.documentElement.dataset.shown = bits;
}

const minus = (text) => text.replace("-", "\u2212");
const fixed = (value, digits = 1) => minus((Math.round(value * 10 ** digits) / 10 ** digits + 0).toFixed(digits)); // no -0
const signed = (value) => (value >= 0.05 ? "+" : "") + fixed(value);

// Takes up another code. `fresh` begins a new history, whose start the changes are counted from.
function go(bits, { fresh = false, remember = true } = {}) {
  if (fresh) { state.start = bits; state.startImage = null; state.past = []; }
  else if (remember && bits !== state.bits) state.past.push(state.bits);
  state.bits = bits;
  $("undo").disabled = !state.past.length; $("restart").disabled = bits === state.start;
  paintCells();
  return refresh();
}

function flip(unit) {
  go(state.bits.slice(0, unit) + (state.bits[unit] === "1" ? "0" : "1") + state.bits.slice(unit + 1));
}

function undo() { if (state.past.length) { const bits = state.past.pop(); go(bits, { remember: false }); } }

async function sampleOne() {
  const seed = newSeed(), { images, bits } = await ask("samples", { count: 1, seed });
  if (bits) { state.seed = state.about.varies ? seed : 0; await go(bits[0], { fresh: true }); }
  else { show($("image"), unpack(images)[0]); }
}

async function dataOne() {
  const { bits } = await ask("data", { count: 1, seed: newSeed() });
  await go(bits[0], { fresh: true });
}

// --- bits ---------------------------------------------------------------------------------------------------------

let cells = [];

function makeCells() {
  let unit = 0;
  const groups = state.about.groups;
  $("grid").classList.toggle("few", Math.max(...groups) < 40);
  $("grid").replaceChildren(...groups.map((size, g) => {
    const group = document.createElement("div"), box = document.createElement("div");
    group.className = "group"; box.className = "cells";
    box.setAttribute("role", "group"); box.setAttribute("aria-label", `Group ${g + 1}, ${size} units`);
    if (groups.length > 1) { const title = document.createElement("h3"); title.textContent = `Group ${g + 1}`; group.append(title); }
    for (let n = 0; n < size; n++, unit++) box.append(makeCell(unit));
    group.append(box);
    return group;
  }));
  cells = [...document.querySelectorAll(".cell")];
  if (cells.length) cells[0].tabIndex = 0;
}

function makeCell(unit) {
  const cell = document.createElement("button");
  cell.type = "button"; cell.className = "cell"; cell.tabIndex = -1; cell.dataset.unit = unit;
  cell.setAttribute("role", "switch"); cell.setAttribute("aria-label", `Unit ${unit + 1}`);
  cell.addEventListener("click", () => { focusCell(unit, false); flip(unit); });
  cell.addEventListener("focus", () => focusCell(unit, false));
  cell.addEventListener("pointerenter", () => describe(unit));
  cell.addEventListener("keydown", moveAmongCells);
  return cell;
}

let focused = 0;

function focusCell(unit, move = true) {
  cells[focused].tabIndex = -1; cells[unit].tabIndex = 0; focused = unit;
  if (move) cells[unit].focus();
  describe(unit);
}

// Up and down go to the nearest cell of the next line, whatever the width of the window makes of the lines.
function moveAmongCells(event) {
  const unit = Number(event.currentTarget.dataset.unit);
  const ends = { ArrowLeft: unit - 1, ArrowRight: unit + 1, Home: 0, End: cells.length - 1 };
  const to = event.key in ends ? ends[event.key] : { ArrowUp: below(unit, -1), ArrowDown: below(unit, 1) }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  if (cells[to]) focusCell(to);
}

function below(unit, way) {
  const here = cells[unit].getBoundingClientRect();
  let best = unit, line = null;
  for (let n = unit + way; cells[n]; n += way) {
    const there = cells[n].getBoundingClientRect();
    if (Math.abs(there.top - here.top) < 2) continue;
    if (line !== null && Math.abs(there.top - line) > 2) break;
    line = there.top;
    if (best === unit || Math.abs(there.left - here.left) < Math.abs(cells[best].getBoundingClientRect().left - here.left)) best = n;
  }
  return best;
}

function paintCells() {
  cells.forEach((cell, n) => {
    cell.setAttribute("aria-checked", state.bits[n] === "1");
    cell.classList.toggle("switched", state.bits[n] !== state.start[n]);
  });
}

async function measureBits() {
  const measure = $("measure").value;
  if (measure === "pixels") state.values.pixels = (await ask("effects", { bits: state.bits, seed: state.seed })).pixels;
  else if (measure === "flips") state.values.flips = state.flips;
  else Object.assign(state.values, await measures());
  const values = state.values[measure] ?? [], most = Math.max(1e-9, ...values);
  cells.forEach((cell, n) => cell.style.setProperty("--bar", Math.max(0, (values[n] ?? 0) / most).toFixed(3)));
  describe(focused);
}

function describe(unit) {
  const { pixels, kl } = state.values, changes = [];
  if (state.flips) changes.push(`log p(z) by ${signed(-state.flips[unit])} nats`);
  if (pixels) changes.push(`the image by ${(100 * pixels[unit]).toFixed(1)} %`);
  const told = changes.length ? ` A flip changes ${changes.join(" and ")}.` : "";
  $("unit").textContent = `Unit ${unit + 1} is ${state.bits[unit] === "1" ? "on" : "off"}.${told}${kl ? ` KL ${kl[unit].toFixed(2)} nats.` : ""}`;
}

// --- samples ------------------------------------------------------------------------------------------------------

async function drawSamples(seed) {
  const answer = await ask("samples", { count: 24, seed });
  const choose = answer.bits && ((n) => { state.seed = state.about.varies ? seed : 0; mark($("drawn"), n); go(answer.bits[n], { fresh: true }); });
  fillSheet($("drawn"), unpack(answer.images), (n) => `Sample ${n + 1}`, choose);
  return answer;
}

const mark = (sheet, n) => [...sheet.children].forEach((each, k) => each.classList.toggle("at", k === n));

// --- walk ---------------------------------------------------------------------------------------------------------

const way = { from: "", to: "", images: [], flipped: [], energy: null, at: 0, timer: null };

async function anotherEnd() {
  const answer = state.about.data.missing ? await ask("samples", { count: 1, seed: newSeed() }) : await ask("data", { count: 1, seed: newSeed() });
  way.to = answer.bits[0];
}

async function layWay() {
  stop();
  const answer = await ask("walk", { start: way.from, end: way.to, seed: state.seed });
  Object.assign(way, { images: unpack(answer.images), flipped: answer.flipped, energy: answer.energy });
  const last = way.flipped.length;
  $("step").max = last;
  show($("from"), way.images[0]); show($("to"), way.images[last]);
  drawCurve();
  way.shown = Array.from({ length: 12 }, (_, n) => Math.round((n * last) / 11));
  fillSheet($("steps"), way.shown.map((n) => way.images[n]), (n) => `Step ${way.shown[n]}`, (n) => walkTo(way.shown[n]));
  $("order").textContent = way.energy ? "The curve is the energy of the code: each step takes the flip that costs least." : "Units are flipped in their order.";
  await walkTo(0, false);
}

function drawCurve() {
  $("curve").toggleAttribute("hidden", !way.energy); $("curve").style.display = way.energy ? "" : "none";
  if (!way.energy) return;
  const low = Math.min(...way.energy), span = Math.max(1e-9, Math.max(...way.energy) - low), last = Math.max(1, way.energy.length - 1);
  const points = way.energy.map((e, n) => `${((100 * n) / last).toFixed(2)},${(28 - (26 * (e - low)) / span).toFixed(2)}`);
  $("curve-line").setAttribute("d", `M${points.join("L")}`);
}

function walkTo(step, take = true) {
  const last = way.flipped.length, bits = [...way.from];
  way.at = step; $("step").value = step;
  for (const unit of way.flipped.slice(0, step)) bits[unit] = way.to[unit];
  const at = (100 * step) / Math.max(1, last);
  $("curve-at").setAttribute("x1", at); $("curve-at").setAttribute("x2", at);
  const unit = way.flipped[step - 1];
  const told = step ? `: unit ${unit + 1} switched ${way.to[unit] === "1" ? "on" : "off"}` : "";
  $("step-reading").textContent = last ? `Step ${step} of ${last}${told}` : "Both ends have the same code.";
  mark($("steps"), way.shown.findLastIndex((n) => n <= step));
  if (take) return go(bits.join(""), { remember: false });
}

function play() {
  if (way.timer) { stop(); return; }
  if (way.at >= way.flipped.length) walkTo(0);
  $("play").textContent = "Pause";
  way.timer = setInterval(() => { if (way.at >= way.flipped.length) stop(); else walkTo(way.at + 1); }, 120);
}

function stop() { clearInterval(way.timer); way.timer = null; $("play").textContent = "Play"; }

// --- paint --------------------------------------------------------------------------------------------------------

const easel = { letters: [], of: null, ground: null, x: 0, y: 0 };

function clearEasel(letter = "?") {
  const { height, width } = state.about.image;
  easel.letters = Array(height * width).fill(letter);
  showEasel();
}

function showEasel() {
  const hidden = getComputedStyle(document.documentElement).getPropertyValue("--hidden").trim();
  const rgb = [1, 3, 5].map((n) => parseInt(hidden.slice(n, n + 2), 16));
  const { width } = state.about.image;
  draw($("canvas"), (n) => {
    const letter = easel.letters[n];
    const colour = letter === "?" ? rgb : letter === "=" ? grey(easel.ground, n) : letter === "1" ? [255, 255, 255] : [0, 0, 0];
    const cursor = document.activeElement === $("canvas") && n === easel.y * width + easel.x;
    return cursor ? colour.map((each, k) => Math.round(0.4 * each + 0.6 * [242, 162, 97][k])) : colour;
  });
}

function stroke(x, y) {
  const { height, width } = state.about.image;
  const letter = document.querySelector("input[name=brush]:checked").value, thick = Number($("width").value);
  if (letter === "=" && easel.of === null) return;
  const [left, top] = [x - Math.floor(thick / 2), y - Math.floor(thick / 2)];
  for (let row = Math.max(0, top); row < Math.min(height, top + thick); row++) {
    for (let column = Math.max(0, left); column < Math.min(width, left + thick); column++) easel.letters[row * width + column] = letter;
  }
}

function strokeAt(event) {
  if (!event.buttons) return;
  const box = $("canvas").getBoundingClientRect(), { height, width } = state.about.image;
  const place = [event.clientX - box.left, event.clientY - box.top];
  const [x, y] = [Math.floor((place[0] / box.width) * width), Math.floor((place[1] / box.height) * height)];
  const from = easel.last ?? [x, y], steps = Math.max(1, Math.abs(x - from[0]), Math.abs(y - from[1]));
  for (let n = 0; n <= steps; n++) stroke(Math.round(from[0] + ((x - from[0]) * n) / steps), Math.round(from[1] + ((y - from[1]) * n) / steps));
  easel.last = [x, y]; easel.x = x; easel.y = y;
  showEasel();
}

function keyOnEasel(event) {
  const { height, width } = state.about.image;
  const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], " ": [0, 0] }[event.key];
  if (!by) return;
  event.preventDefault();
  easel.x = Math.min(width - 1, Math.max(0, easel.x + by[0])); easel.y = Math.min(height - 1, Math.max(0, easel.y + by[1]));
  if (event.key === " " || event.shiftKey) stroke(easel.x, easel.y);
  const word = { "?": "hidden", 0: "black", 1: "white", "=": "shown" }[easel.letters[easel.y * width + easel.x]];
  $("cursor").textContent = `Row ${easel.y + 1}, column ${easel.x + 1}: ${word}`;
  showEasel();
}

async function paintData() {
  const answer = await ask("data", { count: 1, seed: newSeed() });
  easel.ground = unpack(answer.images)[0]; easel.of = answer.places[0];
  if (state.about.binary_pixels) easel.letters = easel.letters.map((_, n) => (level(easel.ground, n) > 127 ? "1" : "0"));
  else easel.letters.fill("=");
  showEasel();
}

function paintCurrent() {
  easel.letters = easel.letters.map((_, n) => (level(state.image, n) > 127 ? "1" : "0"));
  showEasel();
}

function hideHalf() {
  easel.letters = easel.letters.map((letter, n) => (n >= easel.letters.length / 2 ? "?" : letter));
  showEasel();
}

async function fillIn() {
  const question = { pixels: easel.letters.join(""), of: easel.of, rounds: Number($("rounds").value), seed: newSeed() };
  const answer = await ask("inpaint", question);
  const images = [...unpack(answer.images), ...unpack(answer.mean)], last = images.length - 1;
  const choose = answer.bits && ((n) => { if (n < last) { mark($("completions"), n); go(answer.bits[n], { fresh: true }); } });
  fillSheet($("completions"), images, (n) => (n < last ? `Completion ${n + 1}` : "Mean of all completions"), choose, images.map((_, n) => (n < last ? `${n + 1}` : "Mean")));
  $("moved").textContent = `Samples of the hidden pixels given the others; the latents moved in ${Math.round(100 * answer.moved)} % of the rounds.`;
}

// --- units --------------------------------------------------------------------------------------------------------

let measured = null, sortBy = "kl", rowsShown = 20;

async function measures() {
  if (!measured || measured.own !== Boolean(state.about.data.missing)) measured = await ask("units");
  return measured;
}

async function showUnits() {
  const found = await measures(), count = found.kl.length;
  const images = found.own ? `${found.images} images that the model drew, since there is no data set here` : `${found.images} test images`;
  $("units-lead").textContent = `${found.active} of ${count} units are active, measured on ${images}.`;
  const order = found[sortBy].map((value, n) => [value, n]).sort((a, b) => b[0] - a[0]).map(([, n]) => n);
  const kinds = ["kl", "activity", ...(found.energy ? ["energy"] : [])];
  const most = Object.fromEntries(kinds.map((kind) => [kind, Math.max(1e-9, ...found[kind])]));
  $("rows").replaceChildren(...order.slice(0, rowsShown).map((unit) => unitRow(unit, found, kinds, most)));
  $("all-rows").hidden = count <= rowsShown; $("all-rows").textContent = `Show all ${count}`;
}

function unitRow(unit, found, kinds, most) {
  const row = document.createElement("tr"), first = document.createElement("td"), button = document.createElement("button");
  button.type = "button"; button.textContent = unit + 1; button.setAttribute("aria-label", `Unit ${unit + 1}: go to its bit`);
  button.addEventListener("click", () => { choose("bits"); focusCell(unit); });
  first.append(button); row.append(first);
  for (const kind of kinds) {
    const cell = document.createElement("td"), bar = document.createElement("div");
    bar.className = "bar"; bar.textContent = fixed(found[kind][unit], kind === "energy" ? 1 : 3);
    bar.style.setProperty("--bar", Math.max(0, found[kind][unit] / most[kind]).toFixed(3));
    cell.append(bar); row.append(cell);
  }
  return row;
}

function sortUnits(button) {
  sortBy = button.dataset.sort;
  for (const each of document.querySelectorAll("[data-sort]")) each.parentElement.setAttribute("aria-sort", each === button ? "descending" : "none");
  return showUnits();
}

// --- nearest ------------------------------------------------------------------------------------------------------

async function showNearest() {
  await lookForData();
  if (state.about.data.missing) { $("nearest-lead").textContent = sentence(`No data set to search: ${state.about.data.missing}`); $("found").replaceChildren(); return; }
  const answer = await ask("nearest", { bits: state.bits, count: 16 });
  const part = answer.encoded < answer.images_in_all ? `the first ${answer.encoded.toLocaleString("en")} of ${answer.images_in_all.toLocaleString("en")}` : answer.images_in_all.toLocaleString("en");
  $("nearest-lead").textContent = `The nearest of ${part} images of ${answer.name}, by the number of bits in which their codes differ.`;
  const captions = answer.distances.map((d) => (d === 1 ? "1 bit" : `${d} bits`));
  fillSheet($("found"), unpack(answer.images), (n) => `Image ${answer.places[n]}, ${captions[n]} away`, (n) => go(answer.bits[n], { fresh: true }), captions);
}

// While the data set is still being read, the page looks again by itself.
async function lookForData() {
  if (!state.about.data.missing) return;
  state.about.data = (await ask("about")).data;
  toggle(".of-data", !state.about.data.missing && state.about.groups.length > 0);
  if (state.about.data.reading) setTimeout(() => lookForData().catch(problem), 1000);
}

// --- the page -----------------------------------------------------------------------------------------------------

const toggle = (selector, on) => document.querySelectorAll(selector).forEach((each) => { each.hidden = !on; });
const current = () => document.querySelector('[role="tab"][aria-selected="true"]').getAttribute("aria-controls");

// What a tool does again whenever the present code has changed.
const listeners = { bits: measureBits, nearest: showNearest };
// What a tool does when it is opened.
const openers = {
  bits: measureBits, units: showUnits, nearest: showNearest,
  samples: () => $("drawn").childElementCount || drawSamples(0),
  walk: async () => { if (way.from) return; way.from = state.bits; await lookForData(); await anotherEnd(); await layWay(); },
  paint: () => { if (!easel.letters.length) clearEasel(); else showEasel(); },
};

function choose(tool) {
  stop();
  for (const tab of document.querySelectorAll('[role="tab"]')) {
    const chosen = tab.id === `tab-${tool}`;
    tab.setAttribute("aria-selected", chosen); tab.tabIndex = chosen ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
  document.querySelector("main").dataset.tool = tool;
  history.replaceState(null, "", `#${tool}`);
  return busy($(`tab-${tool}`), openers[tool]);
}

function moveAmongTabs(event) {
  const tabs = [...document.querySelectorAll('[role="tab"]:not([hidden])')], at = tabs.indexOf(event.target);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (to === undefined || at < 0) return;
  event.preventDefault();
  const tab = tabs[(to + tabs.length) % tabs.length];
  tab.focus(); choose(tab.getAttribute("aria-controls"));
}

function listen() {
  const click = (id, job) => $(id).addEventListener("click", () => busy($(id), async () => job()));
  click("another-sample", sampleOne); click("another-image", dataOne);
  click("undo", undo); click("restart", () => go(state.start));
  click("reseed", () => { state.seed = newSeed(); state.startImage = null; return refresh(); });
  click("draw", () => drawSamples(newSeed()));
  click("from-current", () => { way.from = state.bits; return layWay(); });
  click("to-another", async () => { await anotherEnd(); await layWay(); });
  $("play").addEventListener("click", play);
  $("step").addEventListener("input", () => { stop(); walkTo(Number($("step").value)); });
  click("paint-current", paintCurrent); click("paint-data", paintData);
  click("hide-half", hideHalf); click("hide-all", () => clearEasel()); click("fill", fillIn);
  click("all-rows", () => { rowsShown = Infinity; return showUnits(); });
  $("measure").addEventListener("change", () => busy(null, measureBits));
  for (const button of document.querySelectorAll("[data-sort]")) button.addEventListener("click", () => busy(button, () => sortUnits(button)));
  for (const tab of document.querySelectorAll('[role="tab"]')) tab.addEventListener("click", () => choose(tab.getAttribute("aria-controls")));
  $("tabs").addEventListener("keydown", moveAmongTabs);
  const canvas = $("canvas");
  canvas.addEventListener("pointerdown", (event) => { easel.last = null; canvas.setPointerCapture(event.pointerId); strokeAt(event); });
  canvas.addEventListener("pointermove", strokeAt);
  canvas.addEventListener("pointerup", () => { easel.last = null; });
  canvas.addEventListener("keydown", keyOnEasel);
  for (const name of ["focus", "blur"]) canvas.addEventListener(name, showEasel);
  document.addEventListener("keydown", (event) => { if (event.key === "u" && !event.ctrlKey && !event.metaKey && !event.altKey) undo(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (state.image) refresh(); });
}

function introduce() {
  const a = state.about, { channels, height, width } = a.image, units = a.groups.reduce((sum, n) => sum + n, 0);
  document.title = `${a.recipe} on ${a.dataset}`;
  $("title").textContent = `${a.recipe} on ${a.dataset}`;
  const error = a.standard_error === null ? "" : ` ± ${a.standard_error.toFixed(2)}`;
  $("facts").textContent = [
    a.run, units ? `${units} binary units` : "no binary units", `${height} × ${width} ${channels === 3 ? "colour " : ""}pixels`,
    `step ${a.step.toLocaleString("en")}`, ...(a.log_likelihood === null ? [] : [`log p(x) = ${fixed(a.log_likelihood, 2)}${error} nats`]),
  ].join(" · ");
  $("energy-name").textContent = a.log_z === null ? "Energy" : "log p(z)";
  toggle(".of-bits", units > 0); toggle(".of-energy", a.energy); toggle(".of-noise", a.varies && units > 0);
  toggle(".of-data", !a.data.missing && units > 0); toggle("#tab-paint", a.completes);
  if (!units) { $("stage-title").textContent = "An image of the prior"; toggle("#stage .aside, #undo, #restart", false); }
  for (const input of document.querySelectorAll("input[name=brush]")) {
    const on = input.value === "?" || (input.value === "=" ? !a.binary_pixels : a.paints);
    input.parentElement.hidden = !on;
  }
  $("paint-current").hidden = !a.binary_pixels || !units;
  if (!a.paints) document.querySelector('input[value="?"]').checked = true;
  return units;
}

async function begin() {
  state.about = await ask("about");
  const units = introduce();
  listen();
  if (units) makeCells();
  const first = await drawSamples(0);
  if (units) await go(first.bits[0], { fresh: true }); else show($("image"), unpack(first.images)[0]);
  await lookForData();
  const wanted = location.hash.slice(1), tab = wanted && $(`tab-${wanted}`);
  await choose(tab && !tab.hidden ? wanted : units ? "bits" : "samples");
  document.documentElement.dataset.ready = "true";
}

begin().catch(problem);
