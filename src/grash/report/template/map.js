"use strict";
/* Draw a map into the elements whose ids begin with a prefix; onChoose receives the name of a point that is clicked. */
function entityMap(data, prefix, onChoose) {
  const $ = id => document.getElementById(prefix + id);
  const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const place = new Uint16Array(bytes(data.places).buffer);      // x, y of each point, 0 … 65535
  const classes = data.colors.map(color => bytes(color.classes)); // the color of each point, by choice of colors
  const n = place.length / 2, names = data.names, SIZE = 65536, CELLS = 256, SHIFT = 8;
  const canvas = $("map"), pen = canvas.getContext("2d"), label = $("name");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const COLORS = ["#4477aa", "#ee6677", "#228833", "#b58900", "#0099aa", "#aa3377", "#e07020", "#7755cc", "#777733", "#994400"];
  const OTHER = "#8a8f98";
  const view = { scale: 1, x: SIZE / 2, y: SIZE / 2 };            // pixels per unit, and the point in the middle
  let chosen = 0, alone = -1, marked = -1, ratio = 1, waiting = false, home = [];

  // points sorted by the cell of a grid, to find those near the pointer
  const start = new Uint32Array(CELLS * CELLS + 1), order = new Uint32Array(n);
  const cell = i => (place[2 * i + 1] >> SHIFT) * CELLS + (place[2 * i] >> SHIFT);
  for (let i = 0; i < n; i++) start[cell(i) + 1]++;
  for (let c = 0; c < CELLS * CELLS; c++) start[c + 1] += start[c];
  const next = start.slice();
  for (let i = 0; i < n; i++) order[next[cell(i)]++] = i;

  const colorOf = k => k < COLORS.length ? COLORS[k] : OTHER;
  const short = (name, most) => [...name].length > most ? `${[...name].slice(0, most - 1).join("")}…` : name;
  const packed = hex => { // as ImageData stores it, least byte first
    const value = parseInt(hex.slice(1), 16);
    return (255 << 24 | (value & 255) << 16 | (value >> 8 & 255) << 8 | value >> 16) >>> 0;
  };
  const toScreen = i => [(place[2 * i] - view.x) * view.scale + canvas.width / 2, (place[2 * i + 1] - view.y) * view.scale + canvas.height / 2];
  const fromScreen = (x, y) => [(x - canvas.width / 2) / view.scale + view.x, (y - canvas.height / 2) / view.scale + view.y];

  function fit() {
    ratio = devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
    canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  }
  function showAll() { // beside a panel that covers the canvas, or below it on a narrow screen
    const covered = getComputedStyle(canvas).position === "absolute", narrow = canvas.clientWidth <= 480;
    const left = !covered || narrow ? 0 : Math.min(304 * ratio, canvas.width / 3), top = covered && narrow ? 0.47 * canvas.height : 0;
    view.scale = 0.92 * Math.min(canvas.width - left, canvas.height - top) / SIZE;
    view.x = SIZE / 2 - left / 2 / view.scale;
    view.y = SIZE / 2 - top / 2 / view.scale;
    home = [view.scale, view.x, view.y];
    draw();
  }
  function draw() {
    if (!waiting) { waiting = true; requestAnimationFrame(() => { if (waiting) paint(); }); }
  }
  function paint() {
    waiting = false;
    const width = canvas.width, height = canvas.height, image = pen.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer), kinds = classes[chosen] || null;
    const tints = Array.from({ length: COLORS.length + 1 }, (_, k) => packed(colorOf(k)));
    const zoom = view.scale * SIZE / Math.min(width, height), base = n > 200000 ? 1 : n > 20000 ? 2 : n > 3000 ? 3 : n > 300 ? 5 : 12;
    const size = Math.max(1, Math.round(Math.min(base + Math.log2(Math.max(1, zoom)), Math.max(base, 9)) * ratio / 1.2));
    const seen = [], dots = []; // few points are drawn as circles
    let visible = 0;
    for (let i = 0; i < n; i++) {
      const k = kinds ? kinds[i] : COLORS.length;
      if (alone >= 0 && k !== alone) continue;
      const x = Math.round((place[2 * i] - view.x) * view.scale + width / 2 - size / 2);
      const y = Math.round((place[2 * i + 1] - view.y) * view.scale + height / 2 - size / 2);
      if (x < 0 || y < 0 || x + size > width || y + size > height) continue;
      visible++;
      if (seen.length <= 80) seen.push(i);
      if (n <= 3000) { dots.push([x + size / 2, y + size / 2, k]); continue; }
      const tint = tints[Math.min(k, COLORS.length)];
      for (let row = y * width + x, last = row + size * width; row < last; row += width) pixels.fill(tint, row, row + size);
    }
    pen.putImageData(image, 0, 0);
    for (const [x, y, k] of dots) {
      pen.fillStyle = colorOf(k);
      pen.beginPath(); pen.arc(x, y, size / 2, 0, 7); pen.fill();
    }
    const text = getComputedStyle(document.body).color;
    pen.font = `${12 * ratio}px system-ui, sans-serif`;
    pen.fillStyle = text;
    const written = []; // left, right and baseline of the labels; one that would overlap another is left out
    const isFree = (left, right, y) => left >= 0 && right <= width
      && written.every(w => right < w[0] || left > w[1] || Math.abs(y - w[2]) > 14 * ratio);
    if (visible <= 80) for (const i of seen) {
      if (i === marked) continue;
      const [x, at] = toScreen(i), y = at + 4 * ratio, name = short(names[i], 40), gap = size / 2 + 3 * ratio;
      const wide = pen.measureText(name).width;
      const left = [x + gap, x - gap - wide].find(start => isFree(start, start + wide, y));
      if (left === undefined) continue;
      written.push([left, left + wide, y]);
      pen.fillText(name, left, y);
    }
    canvas.dataset.labels = written.length;
    if (marked >= 0) {
      const [x, y] = toScreen(marked);
      pen.strokeStyle = text; pen.lineWidth = 2 * ratio;
      pen.beginPath(); pen.arc(x, y, size / 2 + 5 * ratio, 0, 7); pen.stroke();
      pen.fillText(short(names[marked], 60), x + size / 2 + 8 * ratio, y + 4 * ratio);
    }
    canvas.dataset.visible = visible;
  }
  function zoomAt(x, y, factor) {
    const [px, py] = fromScreen(x, y);
    const least = 0.3 * Math.min(canvas.width, canvas.height) / SIZE;
    view.scale = Math.min(Math.max(view.scale * factor, least), 60);
    view.x = px - (x - canvas.width / 2) / view.scale;
    view.y = py - (y - canvas.height / 2) / view.scale;
    draw();
  }
  const zoomMiddle = factor => zoomAt(canvas.width / 2, canvas.height / 2, factor);
  function nearest(x, y) {
    const [px, py] = fromScreen(x, y), reach = 10 * ratio / view.scale, kinds = classes[chosen];
    const cellAt = v => Math.max(0, Math.min(CELLS - 1, Math.floor(v) >> SHIFT));
    let best = -1, least = reach * reach;
    for (let cy = cellAt(py - reach); cy <= cellAt(py + reach); cy++) for (let cx = cellAt(px - reach); cx <= cellAt(px + reach); cx++) {
      for (let k = start[cy * CELLS + cx]; k < start[cy * CELLS + cx + 1]; k++) {
        const i = order[k], dx = place[2 * i] - px, dy = place[2 * i + 1] - py, d = dx * dx + dy * dy;
        if (d < least && (alone < 0 || !kinds || kinds[i] === alone)) { least = d; best = i; }
      }
    }
    return best;
  }
  const at = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const zoomTo = (event, factor) => { const [x, y] = at(event); zoomAt(x * ratio, y * ratio, factor); };
  function hover(event) {
    const box = canvas.getBoundingClientRect(), [x, y] = at(event);
    const i = nearest(x * ratio, y * ratio);
    label.style.display = i < 0 ? "none" : "block";
    if (i < 0) return;
    const kind = classes[chosen] && data.colors[chosen].labels[classes[chosen][i]];
    label.textContent = kind ? `${names[i]} (${kind})` : names[i];
    label.style.left = `${Math.min(x + 14, box.width - label.offsetWidth - 8)}px`;
    label.style.top = `${Math.max(8, Math.min(y + 14, box.height - label.offsetHeight - 8))}px`;
  }
  const pointers = new Map();
  let pressed = [0, 0];
  canvas.addEventListener("pointerdown", e => { pressed = at(e); pointers.set(e.pointerId, e); canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("click", e => {
    const [x, y] = at(e), i = Math.hypot(x - pressed[0], y - pressed[1]) > 4 ? -1 : nearest(x * ratio, y * ratio);
    if (i < 0 || !onChoose) return;
    marked = i;
    draw();
    onChoose(names[i]);
  });
  for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, e => pointers.delete(e.pointerId));
  canvas.addEventListener("pointerleave", () => { label.style.display = "none"; });
  canvas.addEventListener("pointermove", e => {
    const before = pointers.get(e.pointerId);
    if (!before) return hover(e);
    const others = [...pointers.values()].filter(p => p.pointerId !== e.pointerId);
    if (others.length) { // two fingers
      const o = others[0], far = p => Math.hypot(p.clientX - o.clientX, p.clientY - o.clientY);
      zoomTo(o, far(e) / Math.max(1, far(before)));
    } else {
      view.x -= (e.clientX - before.clientX) * ratio / view.scale;
      view.y -= (e.clientY - before.clientY) * ratio / view.scale;
      draw();
    }
    pointers.set(e.pointerId, e);
  });
  canvas.addEventListener("wheel", e => { e.preventDefault(); zoomTo(e, Math.exp(-e.deltaY / 300)); }, { passive: false });
  canvas.addEventListener("keydown", e => {
    const step = 60 * ratio / view.scale, moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (e.key in moves) { view.x += moves[e.key][0]; view.y += moves[e.key][1]; draw(); }
    else if (e.key === "+" || e.key === "=") zoomMiddle(1.4);
    else if (e.key === "-") zoomMiddle(1 / 1.4);
    else return;
    e.preventDefault();
  });
  $("in").onclick = () => zoomMiddle(1.6);
  $("out").onclick = () => zoomMiddle(1 / 1.6);
  $("reset").onclick = () => { alone = marked = -1; legend(); showAll(); };

  function item(list, text, color, act) {
    const button = document.createElement("button"), shown = document.createElement("span");
    shown.textContent = text; // never HTML: names are anybody's
    if (color) { const dot = document.createElement("i"); dot.style.background = color; button.append(dot); }
    button.append(shown);
    button.title = text;
    button.onclick = act;
    const row = document.createElement("li");
    row.append(button);
    list.append(row);
    return button;
  }
  function legend() {
    const list = $("legend");
    list.replaceChildren();
    (data.colors[chosen] ? data.colors[chosen].labels : []).forEach((text, k) => {
      if (!text) return;
      const button = item(list, text, colorOf(k), () => { alone = alone === k ? -1 : k; legend(); draw(); });
      button.setAttribute("aria-pressed", String(alone === k));
    });
  }
  let lower = null;
  function search() {
    const list = $("found"), words = $("search").value.trim().toLowerCase();
    list.replaceChildren();
    if (!words) { marked = -1; return draw(); }
    lower = lower || names.map(name => name.toLowerCase());
    const first = [], rest = [];
    for (let i = 0; i < n && first.length < 8; i++) {
      if (lower[i].startsWith(words)) first.push(i);
      else if (rest.length < 8 && lower[i].includes(words)) rest.push(i);
    }
    for (const i of [...first, ...rest].slice(0, 8)) item(list, names[i], "", () => {
      marked = i;
      [view.x, view.y] = [place[2 * i], place[2 * i + 1]];
      view.scale = Math.max(view.scale, 6 * Math.min(canvas.width, canvas.height) / SIZE);
      draw();
      if (onChoose) onChoose(names[i]);
    });
    if (!first.length && !rest.length) { const row = document.createElement("li"); row.textContent = "No entity has this in its name."; list.append(row); }
  }
  $("search").oninput = search;
  const select = $("color");
  select.replaceChildren();
  data.colors.forEach((color, k) => select.add(new Option(color.title, k)));
  select.onchange = () => { chosen = Number(select.value); alone = -1; legend(); draw(); };
  addEventListener("resize", () => { fit(); if (String(home) === String([view.scale, view.x, view.y])) showAll(); paint(); }); // a new size clears the canvas
  dark.addEventListener("change", draw);
  fit(); legend(); showAll(); paint();
  return draw;
}
