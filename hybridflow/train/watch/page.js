"use strict";
const COLOURS = ["#2f6fb7", "#d9622b", "#3b8f4a", "#8e5bb5", "#c23b5b", "#2a9d9d", "#9a7b1f", "#6b7785"];
const WIDTH = 420, HEIGHT = 190, LEFT = 56, RIGHT = 8, TOP = 8, BOTTOM = 20;
const at = id => document.getElementById(id);
const hidden = new Set();  // names of runs whose curves are not drawn
const seen = new Map();  // a card by its kind and name
let latest = null, colours = new Map();

function made(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function drawn(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const short = number => number === null ? "not finite" : Number(number.toPrecision(4)).toString();
const tick = number => number !== 0 && (Math.abs(number) < 1e-3 || Math.abs(number) >= 1e5) ? number.toExponential(1) : Number(number.toPrecision(3)).toString();
const size = bytes => bytes >= 2 ** 30 ? (bytes / 2 ** 30).toFixed(1) + " GiB" : Math.round(bytes / 2 ** 20) + " MiB";

function time(seconds) {
  seconds = Math.max(0, Math.round(seconds));
  const hours = Math.floor(seconds / 3600), minutes = Math.floor(seconds / 60) % 60;
  if (hours) return hours + " h " + minutes + " min";
  return minutes ? minutes + " min " + seconds % 60 + " s" : seconds + " s";
}

function colourOf(name) {
  if (!colours.has(name)) colours.set(name, COLOURS[colours.size % COLOURS.length]);
  return colours.get(name);
}

function card(kind, name, parent, make) {
  const key = kind + " " + name;
  if (!seen.has(key)) {
    const element = made("section", "card");
    make(element);
    seen.set(key, element);
  }
  const element = seen.get(key);
  if (element.parentNode !== parent) parent.append(element);
  return element;
}

function showLoad(load) {
  const parts = [];
  if (load.busy !== null) parts.push("processors " + Math.round(100 * load.busy) + " % of " + load.cores + " busy");
  if (load.used !== null) parts.push("memory " + size(load.used) + " of " + size(load.memory));
  at("load").textContent = parts.join(" · ");
}

function showRun(run, now) {
  const element = card("run", run.name, at("runs"), element => {
    const title = made("h2"), label = made("label"), box = made("input"), key = made("span", "key");
    box.type = "checkbox"; box.checked = true; box.hidden = true;
    key.style.background = colourOf(run.name);
    box.onchange = () => { hidden[box.checked ? "delete" : "add"](run.name); element.style.opacity = box.checked ? 1 : .5; show(); };
    label.append(box, key, run.name); label.title = "click to hide or show its curves"; title.append(label);
    const track = made("div", "track"); track.append(made("div"));
    element.append(title, made("div", "about"), track, made("div", "quiet"));
  });
  const [, about, track, rest] = element.children;
  const word = run.state.split(":")[0], state = made("span", "state " + word, run.state);
  const doing = run.function ? " " + run.function : "";
  const since = run.since ? " for " + time(now - run.since) : "";
  const busy = ["running", "tracing", "compiling"].includes(word);
  about.replaceChildren(state, doing + (busy ? since : run.since ? ", " + time(now - run.since) + " ago" : ""));
  track.hidden = !run.steps;
  if (run.steps) track.firstChild.style.width = Math.min(100, 100 * run.step / run.steps) + "%";
  const parts = ["step " + run.step + (run.steps ? " of " + run.steps : "")];
  if (run.epoch !== null) parts.push("epoch " + run.epoch);
  if (run.seconds !== null) parts.push(time(run.seconds) + " in all");
  if (busy && run.steps && run.seconds && run.step) parts.push("about " + time(run.seconds / run.step * (run.steps - run.step)) + " left");
  if (run.process && run.process.memory) parts.push(size(run.process.memory));
  if (word === "gone") parts.push("process " + run.pid + " has ended without a word");
  rest.textContent = parts.join(" · ");
}

function showCurves(name, runs) {
  const element = card("curves", name, at("curves"), element => {
    const svg = drawn("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": name});
    element.append(made("h2", "", name), svg, made("div", "read"));
    const move = event => point(element, event);
    svg.addEventListener("pointermove", move); svg.addEventListener("pointerdown", move);
    svg.addEventListener("pointerleave", () => { element.x = null; read(element); });
  });
  const logarithmic = at("log").checked;
  const shown = runs.filter(run => !hidden.has(run.name) && run.curves[name]);
  const usable = value => value !== null && (!logarithmic || value > 0);
  const all = shown.flatMap(run => run.curves[name].filter(one => usable(one[1])));
  const scale = logarithmic ? Math.log10 : value => value, back = logarithmic ? value => 10 ** value : value => value;
  let [low, high] = all.reduce(([a, b], one) => [Math.min(a, scale(one[1])), Math.max(b, scale(one[1]))], [Infinity, -Infinity]);
  if (low === high) { low -= Math.abs(low) * .05 || .5; high += Math.abs(high) * .05 || .5; }
  const first = Math.min(...all.map(one => one[0])), last = Math.max(...all.map(one => one[0]));
  const x = step => LEFT + (last > first ? (step - first) / (last - first) : .5) * (WIDTH - LEFT - RIGHT);
  const y = value => TOP + (high - scale(value)) / (high - low) * (HEIGHT - TOP - BOTTOM);
  const parts = [];
  if (all.length) for (let i = 0; i <= 4; i++) {
    const level = low + (high - low) * i / 4, height = TOP + (4 - i) / 4 * (HEIGHT - TOP - BOTTOM);
    parts.push(drawn("line", {class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: height, y2: height}));
    parts.push(drawn("text", {x: LEFT - 5, y: height + 4, "text-anchor": "end"}, tick(back(level))));
  }
  if (all.length) {
    parts.push(drawn("text", {x: LEFT, y: HEIGHT - 4}, first));
    parts.push(drawn("text", {x: WIDTH - RIGHT, y: HEIGHT - 4, "text-anchor": "end"}, "step " + last));
  }
  for (const run of shown) {
    let path = "", pen = "M", lone = 0;
    for (const [step, value] of run.curves[name]) {
      if (!usable(value)) { pen = "M"; continue; }
      path += pen + x(step).toFixed(1) + " " + y(value).toFixed(1); pen = "L"; lone += 1;
      if (lone === 1) parts.push(drawn("circle", {cx: x(step), cy: y(value), r: 1.5, fill: colourOf(run.name)}));
    }
    parts.push(drawn("path", {class: "curve", stroke: colourOf(run.name), d: path}));
  }
  element.children[1].replaceChildren(...parts);
  Object.assign(element, {name, shown, first, last});
  read(element);
}

function point(element, event) {
  const box = element.children[1].getBoundingClientRect();
  element.x = Math.min(1, Math.max(0, ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT)));
  read(element);
}

function read(element) {
  const svg = element.children[1], place = element.children[2];
  svg.querySelector(".at")?.remove();
  const parts = [];
  for (const run of element.shown) {
    const curve = run.curves[element.name];
    let found = curve[curve.length - 1];
    if (typeof element.x === "number") {
      const wanted = element.first + element.x * (element.last - element.first);
      found = curve.reduce((best, one) => Math.abs(one[0] - wanted) < Math.abs(best[0] - wanted) ? one : best, found);
    }
    const key = made("span", "key"); key.style.background = colourOf(run.name);
    const pair = made("span", "pair"); pair.append(key, short(found[1]) + " at " + found[0]);
    parts.push(pair, " ");
  }
  if (typeof element.x === "number" && element.shown.length) {
    const x = LEFT + element.x * (WIDTH - LEFT - RIGHT);
    svg.append(drawn("line", {class: "at", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM}));
  }
  place.replaceChildren(...parts);
}

function show() {
  if (!latest) return;
  showLoad(latest.load);
  at("none").hidden = latest.runs.length > 0;
  for (const run of latest.runs) showRun(run, latest.time);
  const names = [...new Set(latest.runs.flatMap(run => Object.keys(run.curves)))].sort();
  for (const name of names) showCurves(name, latest.runs);
  at("tools").hidden = !names.length;
}

async function look() {
  try {
    const response = await fetch("/runs");
    if (!response.ok) throw new Error(response.status);
    latest = await response.json();
    at("lost").hidden = true;
    show();
  } catch (error) { at("lost").hidden = false; }
}

at("log").onchange = show;
look();
setInterval(() => { if (!document.hidden) look(); }, 1000);
