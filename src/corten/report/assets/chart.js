// Line charts in SVG: layers over two axes, redrawn at the width they get, with the nearest point told on hover.

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function scale(axis, from, to) {
  const map = axis.log ? Math.log10 : (v) => v;
  let [low, high] = axis.domain.map(map);
  if (!(high > low)) { low -= 0.5; high += 0.5; }
  return (value) => from + ((map(value) - low) / (high - low)) * (to - from);
}

function ticksOf(axis, count) {
  if (axis.ticks) return typeof axis.ticks === "function" ? axis.ticks(count) : axis.ticks;
  const [low, high] = axis.domain;
  if (!axis.log) return niceTicks(low, high, count).map((v) => [v, axis.format ? axis.format(v) : show(v)]);
  const ticks = [];
  const decades = Math.log10(high / low);
  const leads = decades < 2 ? [1, 2, 5] : [1];
  const skip = Math.max(1, Math.ceil(decades / count));
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++) {
    for (const lead of leads) {
      const value = lead * 10 ** p;
      if (p % skip === 0 && value >= low * 0.999 && value <= high * 1.001) ticks.push([value, show(value, 2)]);
    }
  }
  return ticks;
}

const isNumber = (v) => typeof v === "number" && Number.isFinite(v);

// Broken where a value is missing, so that a line never bridges what is not there.
function linePath(points, x, y) {
  let path = "", open = false;
  for (const [a, b] of points) {
    if (!isNumber(b)) { open = false; continue; }
    path += `${open ? "L" : "M"}${x(a).toFixed(1)},${y(b).toFixed(1)}`;
    open = true;
  }
  return path;
}

function bandPath(points, x, y) {
  let path = "", run = [];
  const close = () => {
    if (run.length === 1) run = [[run[0][0] - 1, ...run[0].slice(1)], [run[0][0] + 1, ...run[0].slice(1)]];
    if (run.length) path += "M" + run.map((p) => `${p[0].toFixed(1)},${p[1].toFixed(1)}`).join("L") + "L" + run.reverse().map((p) => `${p[0].toFixed(1)},${p[2].toFixed(1)}`).join("L") + "Z";
    run = [];
  };
  for (const [a, low, high] of points) {
    if (isNumber(low) && isNumber(high)) run.push([x(a), y(high), y(low)]); else close();
  }
  close();
  return path;
}

const LAYERS = {
  spans: (layer, x, y, box) => layer.spans.map(([a, b]) => draw("rect", { class: layer.class || "infinite", x: x(a), width: Math.max(1, x(b) - x(a)), y: box.top, height: box.bottom - box.top })),
  band: (layer, x, y) => [draw("path", { class: "band", d: bandPath(layer.points, x, y) })],
  line: (layer, x, y) => [draw("path", { class: "line " + (layer.class || ""), d: linePath(layer.points, x, y) })],
  bars: (layer, x, y, box) => layer.points.map(([a, b, v]) => draw("rect", { class: "bar", x: x(a) + 1, width: Math.max(1, x(b) - x(a) - 2), y: y(v), height: Math.max(0, box.bottom - y(v)) })),
  dots: (layer, x, y) => layer.points.filter((p) => isNumber(p[1])).map(([a, b]) => draw("circle", { class: "dot " + (layer.class || ""), cx: x(a).toFixed(1), cy: y(b).toFixed(1), r: layer.radius || 3.5 })),
  errors: (layer, x, y) => layer.points.map(([a, low, high]) => draw("path", { class: "error", d: `M${x(a)},${y(low)}V${y(high)}M${x(a) - 4},${y(low)}h8M${x(a) - 4},${y(high)}h8` })),
  rule: (layer, x, y, box) => {
    const flip = x(layer.x) > (box.left + box.right) / 2;
    const line = draw("line", { class: "rule", x1: x(layer.x), x2: x(layer.x), y1: box.top, y2: box.bottom });
    return layer.text ? [line, draw("text", { x: x(layer.x) + (flip ? -5 : 5), y: box.top + 11, "text-anchor": flip ? "end" : "start" }, layer.text)] : [line];
  },
};

function chart(host, first) {
  let spec = first, seen = 0;
  function redraw() {
    const width = Math.max(220, host.clientWidth || 600);
    const height = spec.height || 250;
    const yTicks = ticksOf(spec.y, Math.max(2, Math.round(height / 45)));
    const wide = Math.max(...yTicks.map((t) => t[1].length), 1);
    const box = { left: spec.left || 14 + 7.2 * wide, right: width - 12, top: spec.y.title ? 24 : 8, bottom: height - (spec.x.title ? 40 : 22) };
    const x = scale(spec.x, box.left, box.right), y = scale(spec.y, box.bottom, box.top);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": spec.label });
    for (const [value, text] of yTicks) {
      svg.append(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
      svg.append(draw("text", { x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, text));
    }
    let free = -Infinity;
    for (const [value, text] of ticksOf(spec.x, Math.max(2, Math.floor(width / 85)))) {
      const at = x(value), half = 3.4 * text.length;
      if (at < box.left - 1 || at > box.right + 1 || at - half < free) continue;
      free = at + half + 6;
      svg.append(draw("line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }));
      const anchor = at + half > width ? "end" : "middle";
      svg.append(draw("text", { x: anchor === "end" ? width : at, y: box.bottom + 17, "text-anchor": anchor }, text));
    }
    svg.append(draw("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    if (spec.x.title) svg.append(draw("text", { class: "title", x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, spec.x.title));
    if (spec.y.title) svg.append(draw("text", { class: "title", x: 2, y: 12 }, spec.y.title));
    for (const layer of spec.layers) svg.append(...LAYERS[layer.kind](layer, x, y, box));
    if (spec.hover && spec.hover.length) hovering(svg, x, box);
    host.replaceChildren(svg);
    seen = host.clientWidth;
  }
  function hovering(svg, x, box) {
    const guide = draw("line", { class: "guide", y1: box.top, y2: box.bottom, visibility: "hidden" });
    const hot = draw("rect", { class: "hot", x: box.left - 8, y: box.top, width: box.right - box.left + 16, height: box.bottom - box.top });
    const places = spec.hover.map((one) => x(one.x));
    const nearest = (event) => {
      const edge = svg.getBoundingClientRect();
      const at = (event.clientX - edge.left) * (svg.viewBox.baseVal.width / edge.width);
      let best = 0;
      places.forEach((place, i) => { if (Math.abs(place - at) < Math.abs(places[best] - at)) best = i; });
      return best;
    };
    hot.addEventListener("pointermove", (event) => {
      const i = nearest(event);
      guide.setAttribute("x1", places[i]); guide.setAttribute("x2", places[i]); guide.setAttribute("visibility", "visible");
      showTip(typeof spec.hover[i].text === "function" ? spec.hover[i].text() : spec.hover[i].text, event.clientX, event.clientY);
    });
    hot.addEventListener("pointerleave", () => { guide.setAttribute("visibility", "hidden"); hideTip(); });
    if (spec.pick) hot.addEventListener("click", (event) => spec.pick(nearest(event)));
    svg.append(guide, hot);
  }
  redraw();
  new ResizeObserver(() => { if (host.clientWidth !== seen) redraw(); }).observe(host);
  return { update(next) { spec = next; redraw(); } };
}

// A domain that holds all finite values with some air, and zero where asked.
function domainOf(values, { zero = false, air = 0.06 } = {}) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (isNumber(v)) { if (v < low) low = v; if (v > high) high = v; }
  if (low > high) return [0, 1];
  if (zero) low = Math.min(0, low);
  const span = high - low || Math.abs(high) || 1;
  return [zero && low === 0 ? 0 : low - air * span, high + air * span];
}
