"use strict";
// The page's data: read from the file itself, unpacked, and asked by cell. Text reaches the page by textContent only.

const content = JSON.parse(document.getElementById("content").textContent);
const ABSENT = 65535;
const FLAG = { observed: 0, filled: 1, infinite: 2, forecast: 3, outside: 4, beyond: 5 };

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "class") node.className = value;
    else if (key === "text") node.textContent = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const find = (id) => document.getElementById(id);

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Differences of 16-bit codes, all high bytes first: the inverse of pack_levels in encode.py.
async function unpackLevels(packed) {
  const bytes = await unpack(packed.data);
  const count = bytes.length >> 1;
  const codes = new Uint16Array(count);
  let code = 0;
  for (let i = 0; i < count; i++) codes[i] = code = (code + ((bytes[i] << 8) | bytes[count + i])) & 65535;
  return { codes, low: packed.low, step: packed.step };
}

const level = (array, i) => (array.codes[i] === ABSENT ? Infinity : array.low + array.step * array.codes[i]);

async function loadTensor() {
  const given = content.tensor;
  const [estimate, below, above, flag, chance] = await Promise.all([
    unpackLevels(given.estimate),
    unpackLevels(given.below),
    given.above ? unpackLevels(given.above) : null,
    unpack(given.flag),
    given.chance ? unpack(given.chance) : null,
  ]);
  const strides = given.shape.map((_, k) => given.shape.slice(k + 1).reduce((a, b) => a * b, 1));
  const up = above || below;
  return {
    ...given, strides, flag, chance,
    flat: (index) => index.reduce((sum, i, k) => sum + i * strides[k], 0),
    estimateAt: (i) => (flag[i] === FLAG.outside ? NaN : level(estimate, i)),
    belowAt: (i) => level(below, i),
    aboveAt: (i) => level(up, i),
    widthAt: (i) => level(below, i) + level(up, i),
    chanceAt: (i) => (chance ? chance[i] / 255 : NaN),
  };
}

async function loadMaps() {
  const maps = {};
  for (const [use, text] of Object.entries(content.maps)) maps[use] = await unpack(text);
  return maps;
}

// Numbers as people read them: four digits, no noise.
function show(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "none";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size >= 1e6 || size < 1e-4) ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

const withUnits = (value) => show(value) + (content.units ? " " + content.units : "");
const percent = (share) => (share > 0 && share < 0.001 ? "< 0.1 %" : show(100 * share, 3) + " %");

function niceStep(span, count) {
  const raw = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const lead = raw / power;
  return (lead > 5 ? 10 : lead > 2 ? 5 : lead > 1 ? 2 : 1) * power;
}

function niceTicks(low, high, count) {
  if (!(high > low)) return [low];
  const step = niceStep(high - low, count);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
  return ticks;
}

const MINUTE = 60000, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const TIME_STEPS = [1000, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY];

// Ticks of a date axis in milliseconds: [value, text]; months and years where days would be too many.
function timeTicks(low, high, count) {
  const span = high - low;
  const step = TIME_STEPS.find((one) => span / one <= count);
  const ticks = [];
  if (step) {
    for (let t = Math.ceil(low / step) * step; t <= high; t += step) {
      const iso = new Date(t).toISOString();
      ticks.push([t, step < MINUTE ? iso.slice(11, 19) : step < DAY ? (t % DAY === 0 && span > DAY ? iso.slice(5, 10) : iso.slice(11, 16)) : iso.slice(0, 10)]);
    }
    return ticks;
  }
  const months = Math.max(1, Math.ceil(span / (30.4 * DAY) / count));
  const every = [1, 2, 3, 6, 12].find((one) => one >= months) || 12 * Math.ceil(months / 12);
  const first = new Date(low);
  for (let month = first.getUTCFullYear() * 12; ; month += every) {
    const t = Date.UTC(Math.floor(month / 12), month % 12, 1);
    if (t > high) break;
    if (t >= low) ticks.push([t, every >= 12 ? String(new Date(t).getUTCFullYear()) : new Date(t).toISOString().slice(0, 7)]);
  }
  return ticks;
}

// Ticks of a tensor axis: [position in cells, text].
function axisTicks(axis, count) {
  const last = axis.labels.length - 1;
  const numbers = axis.numbers;
  if (!numbers || last < 1) {
    const step = Math.max(1, Math.ceil((last + 1) / count));
    const ticks = [];
    for (let i = 0; i <= last; i += step) ticks.push([i, axis.labels[i]]);
    return ticks;
  }
  const low = Math.min(numbers[0], numbers[last]), high = Math.max(numbers[0], numbers[last]);
  const ticks = axis.time ? timeTicks(low, high, count) : niceTicks(low, high, count).map((v) => [v, show(v, 6)]);
  return ticks.map(([value, text]) => [position(numbers, value), text]);
}

// Where a coordinate lies between cells, by bisection on a monotone axis.
function position(numbers, value) {
  const last = numbers.length - 1;
  const sign = numbers[last] >= numbers[0] ? 1 : -1;
  let a = 0, b = last;
  while (b - a > 1) {
    const middle = (a + b) >> 1;
    if (sign * numbers[middle] <= sign * value) a = middle; else b = middle;
  }
  return a + (value - numbers[a]) / (numbers[b] - numbers[a]);
}

const tip = find("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth ? x - box.width - 14 : x + 16;
  const top = y + 16 + box.height > innerHeight ? y - box.height - 14 : y + 16;
  tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
}
const hideTip = () => { tip.hidden = true; };

const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
