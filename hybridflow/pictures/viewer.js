"use strict";
// Draws the diagram in `DATA`: folding, searching, zooming. It follows coordinates.py; a test compares the two.
(() => {
  const { items, root, arrows, fills, edges, marks, heaviest, constants } = DATA;
  const { character, line, title, pad, gapX, gapY, bend } = constants;
  const SVG = "http://www.w3.org/2000/svg";
  const folded = new Set();
  const parents = new Map();
  for (const [id, item] of Object.entries(items)) for (const child of item.children || []) parents.set(child, +id);
  const isGroup = (id) => items[id].children !== undefined;
  const isOpen = (id) => isGroup(id) && !folded.has(id);

  // -- coordinates ----------------------------------------------------------------------------------------------
  function spaced(wanted, widths) {
    const offsets = [0];
    for (let i = 1; i < widths.length; i++) offsets.push(offsets[i - 1] + (widths[i - 1] + widths[i]) / 2 + gapX);
    const pools = [];
    wanted.forEach((value, i) => {
      let mean = value - offsets[i], count = 1;
      while (pools.length && pools[pools.length - 1][0] > mean) {
        const [other, many] = pools.pop();
        mean = (mean * count + other * many) / (count + many);
        count += many;
      }
      pools.push([mean, count]);
    });
    return pools.flatMap(([mean, count]) => Array(count).fill(mean)).map((value, i) => value + offsets[i]);
  }

  // A place is the number of an item, or "link:position" for the bend of a link.
  function arranged(group, sizes) {
    const top = new Map(), middle = new Map(), above = new Map(), below = new Map();
    let y = 0;
    for (const row of group.rows) {
      const height = Math.max(...row.map((place) => sizes.get(place)[1]));
      let x = 0;
      for (const place of row) {
        const [width, own] = sizes.get(place);
        top.set(place, y + (height - own) / 2);
        middle.set(place, x + width / 2);
        above.set(place, []);
        below.set(place, []);
        x += width + gapX;
      }
      y += height + gapY;
    }
    group.links.forEach(([source, target, bends], link) => {
      const stops = [source, ...Array.from({ length: bends }, (_, i) => `${link}:${i}`), target];
      for (let i = 1; i < stops.length; i++) {
        below.get(stops[i - 1]).push(stops[i]);
        above.get(stops[i]).push(stops[i - 1]);
      }
    });
    for (let round = 0; round < constants.alignments; round++) {
      const down = round % 2 === 0, neighbours = down ? above : below;
      for (const row of down ? group.rows : [...group.rows].reverse()) {
        const wanted = row.map((place) => {
          const found = neighbours.get(place).map((one) => middle.get(one));
          return found.length ? found.reduce((a, b) => a + b) / found.length : middle.get(place);
        });
        spaced(wanted, row.map((place) => sizes.get(place)[0])).forEach((x, i) => middle.set(row[i], x));
      }
    }
    const left = new Map();
    for (const [place, x] of middle) left.set(place, x - sizes.get(place)[0] / 2);
    const first = left.size ? Math.min(...left.values()) : 0;
    for (const [place, x] of left) left.set(place, x - first);
    return { left, top, sizes };
  }

  const said = (id) => (isGroup(id) ? [`${items[id].count} operations`] : items[id].lines);

  function size(id, insides) {
    const item = items[id];
    if (!isOpen(id)) {
      const lines = said(id);
      const longest = Math.max(item.title.length, (item.label || "").length, ...lines.map((text) => text.length));
      return [longest * character + 2 * pad, title + line * lines.length + pad];
    }
    const sizes = new Map();
    for (const row of item.rows)
      for (const place of row) sizes.set(place, typeof place === "string" ? [bend, 0] : size(place, insides));
    const inside = arranged(item, sizes);
    insides.set(id, inside);
    let right = 0, bottom = 0;
    for (const [place, [width, height]] of sizes) {
      right = Math.max(right, inside.left.get(place) + width);
      bottom = Math.max(bottom, inside.top.get(place) + height);
    }
    return [Math.max(right, item.title.length * character) + 2 * pad, bottom + title + 2 * pad + line / 2];
  }

  function placed() {
    const insides = new Map(), frames = new Map(), bends = new Map();
    const settle = (id, x, y, width, height) => {
      frames.set(id, { x, y, width, height });
      const inside = insides.get(id);
      if (!inside) return;
      for (const [place, [w, h]] of inside.sizes) {
        const left = x + pad + inside.left.get(place), top = y + title + pad + inside.top.get(place);
        if (typeof place === "string") bends.set(`${id}/${place}`, [left + w / 2, top]);
        else settle(place, left, top, w, h);
      }
    };
    settle(root, 0, 0, ...size(root, insides));
    return { frames, bends };
  }

  // -- drawing --------------------------------------------------------------------------------------------------
  function element(name, attributes, parent, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.appendChild(made);
    return made;
  }

  const visible = (id, frames) => {
    while (!frames.has(id)) id = parents.get(id);
    return id;
  };

  function curve(points) {
    let [x, y] = points[0];
    let text = `M${x.toFixed(1)} ${y.toFixed(1)}`;
    for (const [right, down] of points.slice(1)) {
      const middle = (y + down) / 2;
      text += `C${x.toFixed(1)} ${middle.toFixed(1)} ${right.toFixed(1)} ${middle.toFixed(1)} ${right.toFixed(1)} ${down.toFixed(1)}`;
      [x, y] = [right, down];
    }
    return text;
  }

  function fill(item) {
    if (!(item.weight > 0) || !(heaviest > 0)) return fills[item.kind];
    const share = Math.sqrt(Math.min(item.weight / heaviest, 1));
    const parts = constants.cold.map((cold, i) => Math.round(cold + (constants.hot[i] - cold) * share));
    return `rgb(${parts.join(",")})`;
  }

  const svg = document.querySelector("#graph");
  const world = element("g", {}, svg);
  let drawing = placed(), found = [], chosen = null;

  function draw() {
    drawing = placed();
    world.replaceChildren();
    const { frames, bends } = drawing;
    const behind = element("g", {}, world), lines = element("g", {}, world), front = element("g", {}, world);
    const bottom = (f) => [f.x + f.width / 2, f.y + f.height], top = (f) => [f.x + f.width / 2, f.y];
    const drawn = new Set(), labelled = new Set();
    for (const [source, target, label, group, link] of arrows) {
      const one = visible(source, frames), other = visible(target, frames);
      if (one === other || drawn.has(`${one},${other}`)) continue;
      drawn.add(`${one},${other}`);
      const [from, to, count] = items[group].links[link];
      const start = bottom(frames.get(one)), end = top(frames.get(other)), points = [start];
      if (one !== from) points.push([start[0], bottom(frames.get(from))[1]]);
      for (let i = 0; i < count; i++) points.push(bends.get(`${group}/${link}:${i}`));
      if (other !== to) points.push([end[0], frames.get(to).y]);
      points.push(end);
      const path = element("path", { class: "arrow", d: curve(points), "data-ends": `${one} ${other}` }, lines);
      element("title", {}, path, label);
      const text = items[one].label;
      if (text && !labelled.has(one)) {
        labelled.add(one);
        element("text", { class: "quiet over", x: start[0] + 5, y: start[1] + 12 }, front, text);
      }
    }
    for (const [id, frame] of frames) {
      const item = items[id], open = isOpen(id);
      const box = element("g", { class: isGroup(id) ? "group" : "box", "data-item": id }, open ? behind : front);
      if (found.includes(id)) box.classList.add("found");
      if (chosen === id) box.classList.add("chosen");
      element("rect", {
        x: frame.x, y: frame.y, width: frame.width, height: frame.height, rx: open ? 6 : 5,
        fill: open ? fills[item.kind] : fill(item), stroke: marks[item.mark] || edges[item.kind],
        "stroke-width": item.mark ? 2.5 : 1,
      }, box);
      const middle = frame.x + frame.width / 2;
      if (open) {
        const head = element("g", { class: "group", "data-item": id }, front);
        element("text", { class: "quiet over", x: frame.x + pad, y: frame.y + title }, head, `\u25be ${item.title}`);
      } else {
        const mark = isGroup(id) ? "\u25b8 " : "";
        [mark + item.title, ...said(id)].forEach((text, i) =>
          element("text", {
            class: i ? "quiet" : "title", "text-anchor": "middle", x: middle, y: frame.y + title - 3 + line * i,
          }, box, text));
      }
    }
  }

  // -- moving ---------------------------------------------------------------------------------------------------
  const view = { x: 0, y: 0, scale: 1 };
  const show = () => world.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);

  function fit(smallest) {
    const { width, height } = drawing.frames.get(root);
    const box = svg.getBoundingClientRect();
    view.scale = Math.min(1.5, Math.max(smallest, Math.min((box.width - 20) / width, (box.height - 20) / height)));
    view.x = Math.max(10, (box.width - width * view.scale) / 2);
    view.y = 10;
    show();
  }

  function centre(id) {
    const frame = drawing.frames.get(visible(id, drawing.frames)), box = svg.getBoundingClientRect();
    view.scale = Math.max(view.scale, 0.8);
    view.x = box.width / 2 - (frame.x + frame.width / 2) * view.scale;
    view.y = box.height / 2 - (frame.y + frame.height / 2) * view.scale;
    show();
  }

  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = svg.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const scale = Math.min(4, Math.max(0.02, view.scale * Math.exp(-event.deltaY * 0.0015)));
    view.x = x - ((x - view.x) * scale) / view.scale;
    view.y = y - ((y - view.y) * scale) / view.scale;
    view.scale = scale;
    show();
  }, { passive: false });

  let drag = null;
  svg.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX - view.x, y: event.clientY - view.y, moved: false, from: [event.clientX, event.clientY] };
  });
  window.addEventListener("pointermove", (event) => {
    if (!drag) return;
    drag.moved ||= Math.hypot(event.clientX - drag.from[0], event.clientY - drag.from[1]) > 4;
    if (!drag.moved) return;
    view.x = event.clientX - drag.x;
    view.y = event.clientY - drag.y;
    show();
  });
  window.addEventListener("pointerup", (event) => {
    const was = drag;
    drag = null;
    if (was && !was.moved) click(event.target);
  });

  // -- choosing -------------------------------------------------------------------------------------------------
  const details = document.querySelector("#details");

  function click(target) {
    const holder = target.closest && target.closest("[data-item]");
    if (!holder || !svg.contains(holder)) return;
    const id = +holder.dataset.item;
    if (isGroup(id)) {
      if (id === root) return;
      folded.has(id) ? folded.delete(id) : folded.add(id);
      draw();
    } else choose(id);
  }

  function choose(id) {
    chosen = id;
    draw();
    const item = items[id];
    details.replaceChildren();
    const add = (name, text) => {
      if (!text) return;
      details.appendChild(document.createElement("dt")).textContent = name;
      details.appendChild(document.createElement("dd")).textContent = text;
    };
    add("operation", item.title);
    add("makes", item.label);
    add("with", item.lines.join("\n"));
    add("line", item.where);
    const groups = [];
    for (let at = parents.get(id); at !== undefined && at !== root; at = parents.get(at)) groups.unshift(items[at].title);
    add("in", groups.join(" / "));
    add(DATA.unit, item.weight ? item.weight.toLocaleString("en", { maximumSignificantDigits: 6 }) : "");
    add("difference", item.mark);
    for (const path of svg.querySelectorAll(".arrow"))
      path.classList.toggle("near", path.dataset.ends.split(" ").includes(String(id)));
  }

  // -- searching ------------------------------------------------------------------------------------------------
  const search = document.querySelector("#search"), count = document.querySelector("#count");
  let position = -1;

  function look() {
    const words = search.value.trim().toLowerCase();
    position = -1;
    found = !words ? [] : Object.keys(items).map(Number).filter((id) => {
      const item = items[id];
      return [item.title, item.label, item.where, ...(item.lines || [])].some((text) => text && text.toLowerCase().includes(words));
    });
    count.textContent = words ? `${found.length} found` : "";
    for (const id of found) for (let at = parents.get(id); at !== undefined; at = parents.get(at)) folded.delete(at);
    draw();
    if (found.length) next();
  }

  function next() {
    if (!found.length) return;
    position = (position + 1) % found.length;
    count.textContent = `${position + 1} of ${found.length}`;
    centre(found[position]);
    if (!isGroup(found[position])) choose(found[position]);
  }

  search.addEventListener("input", look);
  search.addEventListener("keydown", (event) => event.key === "Enter" && next());

  function fold(all) {
    folded.clear();
    if (all) for (const id of Object.keys(items).map(Number)) if (isGroup(id) && id !== root) folded.add(id);
    draw();
    fit(0.6); // to read it; the button shows all of it
  }
  document.querySelector("#fold").addEventListener("click", () => fold(true));
  document.querySelector("#unfold").addEventListener("click", () => fold(false));
  document.querySelector("#fit").addEventListener("click", () => fit(0));

  fold(items[root].count > constants.unfolded);
  window.viewer = { frames: () => Object.fromEntries(drawing.frames), fold, look, choose };
})();
