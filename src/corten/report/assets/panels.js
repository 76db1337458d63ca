// The four pictures of one slice: an image of cells, axes around it, a cursor on it and a legend under it.

function hatch(context, line, ground, thick, gap) {
  const tile = document.createElement("canvas");
  const ratio = devicePixelRatio || 1;
  tile.width = tile.height = Math.round(gap * ratio);
  const pen = tile.getContext("2d");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, tile.width, tile.height);
  pen.strokeStyle = line;
  pen.lineWidth = thick * ratio;
  for (const shift of [-1, 0, 1]) {
    pen.beginPath();
    pen.moveTo((shift - 0.5) * tile.width, 1.5 * tile.width);
    pen.lineTo((shift + 1.5) * tile.width, -0.5 * tile.width);
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}

// What each panel shows of a cell: a share of its colour scale, or one of "clear" (hatched), "observed", "outside".
function panelKinds(tensor) {
  const between = (range) => (value) => (value - range[0]) / (range[1] - range[0]);
  const value = between(tensor.scales.value), width = between(tensor.scales.width);
  const outside = (i) => tensor.flag[i] === FLAG.outside;
  const units = content.units || "";
  const kinds = [
    { id: "data", title: "Data, with gaps", map: "value", units, range: tensor.scales.value, clips: true, keys: ["gap"],
      about: units || "observed values", hatch: ["--hatch", "--faint", 1.1, 6],
      of: (i) => (outside(i) ? "outside" : tensor.flag[i] === FLAG.observed ? value(tensor.estimateAt(i)) : "clear") },
    { id: "estimate", title: "Estimate", map: "value", units, range: tensor.scales.value, clips: true, keys: [],
      about: units || "gaps filled, same colours", hatch: ["--hatch", "--faint", 1.1, 6],
      of: (i) => (outside(i) ? "outside" : value(tensor.estimateAt(i))) },
    { id: "width", title: "Interval width", map: "width", units, range: tensor.scales.width, clips: true, keys: ["infinite", "observed"],
      about: `upper − lower${units ? ", " + units : ""}`, hatch: ["--infinite", "--infinite-bg", 1.6, 7],
      of: (i) => {
        if (outside(i)) return "outside";
        if (tensor.flag[i] === FLAG.observed) return "observed";
        const w = tensor.widthAt(i);
        return Number.isFinite(w) ? width(w) : "clear";
      } },
  ];
  if (tensor.chance) {
    kinds.push({ id: "chance", title: "Probability of being observed", map: "chance", units: "", range: [0, 1], clips: false, keys: [],
      about: "by the propensity model", hatch: ["--hatch", "--faint", 1.1, 6],
      of: (i) => (outside(i) ? "outside" : tensor.chanceAt(i)) });
  }
  if (tensor.flag.some((f) => f === FLAG.outside)) kinds.forEach((kind) => kind.keys.push("outside"));
  return kinds;
}

const KEY_TEXT = { gap: "missing", infinite: "infinite interval", observed: "observed", outside: "outside the domain" };

function legendOf(kind, map) {
  const stops = Array.from({ length: 17 }, (_, k) => Math.round((k * 255) / 16)).map((c) => `rgb(${map[3 * c]},${map[3 * c + 1]},${map[3 * c + 2]})`);
  const bar = make("i");
  bar.style.background = `linear-gradient(to right, ${stops.join(",")})`;
  const [low, high] = kind.range;
  const inner = niceTicks(low, high, 4).filter((v) => v - low > 0.25 * (high - low) && high - v > 0.25 * (high - low));
  const shares = [low, ...inner, high];
  const marks = make("div", {}, ...shares.map((v, k) => {
    const ends = kind.clips && k === shares.length - 1 ? "≥ " : kind.clips && k === 0 && kind.map === "value" ? "≤ " : "";
    const mark = make("span", { text: ends + show(v, 3) });
    mark.style.left = `${(100 * (v - low)) / (high - low)}%`;
    return mark;
  }));
  const keys = make("div", { class: "keys" }, ...kind.keys.map((key) => make("span", {}, make("i", { class: "swatch " + key }), KEY_TEXT[key])));
  return make("div", { class: "legend" }, make("div", { class: "ramp" }, bar, marks), kind.keys.length ? keys : null);
}

function makePanel(kind, map) {
  const canvas = make("canvas", { tabindex: "0", role: "application", id: "panel-" + kind.id });
  const figure = make("figure", { class: "panel" },
    make("figcaption", {}, make("b", { text: kind.title }), make("span", { text: kind.about })), canvas, legendOf(kind, map));
  return { kind, map, canvas, figure, image: document.createElement("canvas"), box: null };
}

// On a wide screen all four pictures fit below the controls at once.
const tallestPicture = () => (innerWidth > 720 ? Math.min(440, Math.max(230, (innerHeight - 96) / 2 - 116)) : 440);

// Where the picture of a plane goes on a canvas of this width: cells keep their aspect, none grows too tall.
function frameOf(plane, tensor, width) {
  const rows = tensor.shape[plane.rows], columns = tensor.shape[plane.columns];
  const longest = Math.max(...axisTicks(tensor.axes[plane.rows], 6).map((t) => t[1].length), 1);
  const left = Math.min(28 + 6.6 * longest, 0.3 * width), right = 10, top = 4, bottom = 38;
  const free = width - left - right, tallest = tallestPicture();
  const shape = plane.aspect === null ? 0.62 : Math.min(Math.max((rows * plane.aspect) / columns, 0.15), 4);
  let across = free, tall = free * shape;
  if (tall > tallest) { across *= tallest / tall; tall = tallest; }
  return { left: left + (free - across) / 2, top, width: across, height: tall, canvas: top + tall + bottom, margin: left, rows, columns };
}

function paint(panel, tensor, plane, base, frame, outline, cursor, picked) {
  const { canvas, kind } = panel;
  const { rows, columns } = frame;
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(frame.canvas * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(frame.canvas * ratio);
    canvas.style.height = frame.canvas + "px";
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, frame.canvas);
  const pattern = hatch(pen, cssColour(kind.hatch[0]), cssColour(kind.hatch[1]), kind.hatch[2], kind.hatch[3]);
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  pen.fillStyle = pattern;
  pen.fillRect(frame.left, frame.top, frame.width, frame.height);
  const key = [plane.rows, plane.columns, base, panel.colours.observed].join();
  if (panel.key !== key) cells(panel, tensor, plane, base, rows, columns);
  panel.key = key;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(shrunk(panel, frame.width * ratio, frame.height * ratio), frame.left, frame.top, frame.width, frame.height);
  if (outline) gaps(pen, tensor, plane, base, frame);
  axes(pen, tensor, plane, frame);
  if (picked) mark(pen, plane, frame, picked, 2.2);
  if (cursor) mark(pen, plane, frame, cursor, 1.4);
  panel.box = frame;
}

// The picture with no more cells than pixels along either axis: several cells in one pixel are averaged, others keep their edges.
function shrunk(panel, width, height) {
  const { image } = panel, wide = Math.min(image.width, Math.round(width)), tall = Math.min(image.height, Math.round(height));
  if (image.width === wide && image.height === tall) return image;
  if (panel.small && panel.small.width === wide && panel.small.height === tall) return panel.small;
  const from = image.getContext("2d").getImageData(0, 0, image.width, image.height).data, picture = new ImageData(wide, tall);
  const cut = (k, cells, pixels) => Math.floor((k * cells) / pixels);
  for (let r = 0; r < tall; r++) {
    for (let c = 0; c < wide; c++) {
      const sum = [0, 0, 0, 0];
      let count = 0;
      for (let y = cut(r, image.height, tall); y < cut(r + 1, image.height, tall); y++) {
        for (let x = cut(c, image.width, wide); x < cut(c + 1, image.width, wide); x++, count++) {
          const o = 4 * (y * image.width + x), opaque = from[o + 3];
          for (let k = 0; k < 3; k++) sum[k] += from[o + k] * opaque;
          sum[3] += opaque;
        }
      }
      const o = 4 * (r * wide + c);
      for (let k = 0; k < 3; k++) picture.data[o + k] = sum[3] ? sum[k] / sum[3] : 0;
      picture.data[o + 3] = sum[3] / count;
    }
  }
  panel.small = make("canvas", { width: wide, height: tall });
  panel.small.getContext("2d").putImageData(picture, 0, 0);
  return panel.small;
}

function rgb(colour) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  return pen.getImageData(0, 0, 1, 1).data;
}

function cells(panel, tensor, plane, base, rows, columns) {
  const { kind, map, image } = panel;
  image.width = columns;
  image.height = rows;
  panel.small = null;
  const pen = image.getContext("2d");
  const picture = pen.createImageData(columns, rows);
  const out = picture.data;
  const plain = { observed: panel.colours.observed, outside: panel.colours.outside };
  const down = tensor.strides[plane.rows], across = tensor.strides[plane.columns];
  let o = 0;
  for (let r = 0; r < rows; r++) {
    const row = base + down * (plane.up ? rows - 1 - r : r);
    for (let c = 0; c < columns; c++, o += 4) {
      const share = kind.of(row + across * (plane.right ? c : columns - 1 - c));
      if (share === "clear") continue;
      const flat = plain[share];
      if (flat) { out[o] = flat[0]; out[o + 1] = flat[1]; out[o + 2] = flat[2]; } else {
        const k = 3 * Math.min(255, Math.max(0, Math.round(255 * share)));
        out[o] = map[k]; out[o + 1] = map[k + 1]; out[o + 2] = map[k + 2];
      }
      out[o + 3] = 255;
    }
  }
  pen.putImageData(picture, 0, 0);
}

// From index to picture and back; the same way round for cells, ticks and the cursor.
const placeX = (plane, frame, c) => frame.left + ((plane.right ? c + 0.5 : frame.columns - c - 0.5) * frame.width) / frame.columns;
const placeY = (plane, frame, r) => frame.top + ((plane.up ? frame.rows - r - 0.5 : r + 0.5) * frame.height) / frame.rows;

function cellAt(plane, frame, x, y) {
  const c = Math.floor(((x - frame.left) / frame.width) * frame.columns), r = Math.floor(((y - frame.top) / frame.height) * frame.rows);
  if (c < 0 || r < 0 || c >= frame.columns || r >= frame.rows) return null;
  return { row: plane.up ? frame.rows - 1 - r : r, column: plane.right ? c : frame.columns - 1 - c };
}

function mark(pen, plane, frame, cell, thick) {
  const w = frame.width / frame.columns, h = frame.height / frame.rows;
  const x = placeX(plane, frame, cell.column), y = placeY(plane, frame, cell.row);
  const half = [Math.max(w, 7) / 2 + 1, Math.max(h, 7) / 2 + 1];
  for (const [colour, line] of [[cssColour("--halo"), thick + 2], [cssColour("--cursor"), thick]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = line;
    pen.strokeRect(x - half[0], y - half[1], 2 * half[0], 2 * half[1]);
  }
}

function gaps(pen, tensor, plane, base, frame) {
  const { rows, columns } = frame;
  const down = tensor.strides[plane.rows], across = tensor.strides[plane.columns];
  const w = frame.width / columns, h = frame.height / rows;
  const seen = (r, c) => tensor.flag[base + r * down + c * across] === FLAG.observed;
  pen.beginPath();
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const x = placeX(plane, frame, c), y = placeY(plane, frame, r), here = seen(r, c);
      if (c + 1 < columns && here !== seen(r, c + 1)) { const s = plane.right ? w / 2 : -w / 2; pen.moveTo(x + s, y - h / 2); pen.lineTo(x + s, y + h / 2); }
      if (r + 1 < rows && here !== seen(r + 1, c)) { const s = plane.up ? -h / 2 : h / 2; pen.moveTo(x - w / 2, y + s); pen.lineTo(x + w / 2, y + s); }
    }
  }
  for (const [colour, line] of [["rgba(0,0,0,0.55)", 2], ["#ffffff", 1]]) { pen.strokeStyle = colour; pen.lineWidth = line; pen.stroke(); }
}

function axes(pen, tensor, plane, frame) {
  pen.strokeStyle = cssColour("--line");
  pen.lineWidth = 1;
  pen.strokeRect(frame.left - 0.5, frame.top - 0.5, frame.width + 1, frame.height + 1);
  pen.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  pen.fillStyle = cssColour("--soft");
  pen.textAlign = "center";
  pen.textBaseline = "top";
  const bottom = frame.top + frame.height;
  let free = -Infinity;
  const across = axisTicks(tensor.axes[plane.columns], Math.max(2, Math.floor(frame.width / 75)));
  for (const [at, text] of plane.right ? across : across.reverse()) {
    const x = placeX(plane, frame, at), half = pen.measureText(text).width / 2;
    if (x - half < free || x < frame.left || x > frame.left + frame.width) continue;
    free = x + half + 8;
    pen.beginPath(); pen.moveTo(x, bottom); pen.lineTo(x, bottom + 4); pen.stroke();
    pen.fillText(text, Math.min(x, frame.left + frame.width + 8 - half), bottom + 6);
  }
  pen.fillText(tensor.axes[plane.columns].title, frame.left + frame.width / 2, bottom + 21, frame.width);
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const [at, text] of axisTicks(tensor.axes[plane.rows], Math.max(2, Math.floor(frame.height / 45)))) {
    const y = placeY(plane, frame, at);
    if (y < frame.top || y > bottom) continue;
    pen.beginPath(); pen.moveTo(frame.left - 4, y); pen.lineTo(frame.left, y); pen.stroke();
    pen.fillText(text, frame.left - 7, y, frame.margin - 22);
  }
  pen.save();
  pen.translate(frame.left - frame.margin + 9, frame.top + frame.height / 2);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.fillText(tensor.axes[plane.rows].title, 0, 0, frame.height);
  pen.restore();
}
