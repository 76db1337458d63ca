// The slice explorer: which plane, which slice, which cell; every part redraws from this one state.

function explorer(tensor, maps) {
  const state = { plane: 0, index: tensor.start.slice(), cursor: null, along: 0, playing: null, outline: false };
  const panels = panelKinds(tensor).map((kind) => makePanel(kind, maps[kind.map]));
  const plane = () => tensor.planes[state.plane];
  const others = () => tensor.axes.map((_, k) => k).filter((k) => k !== plane().rows && k !== plane().columns);
  const picked = () => ({ row: state.index[plane().rows], column: state.index[plane().columns] });
  const base = () => others().reduce((sum, k) => sum + state.index[k] * tensor.strides[k], 0);
  const name = (k) => tensor.axes[k].name;
  let series = null;

  function describe(index) {
    const i = tensor.flat(index);
    const flag = tensor.flag[i];
    const where = tensor.axes.map((axis, k) => `${axis.name} ${axis.labels[index[k]]}`).join(", ");
    if (flag === FLAG.outside) return [where, "outside the domain"];
    const estimate = tensor.estimateAt(i);
    const chance = tensor.chance ? [`probability of being observed ${show(tensor.chanceAt(i), 2)}`] : [];
    if (flag === FLAG.observed) return [where, `observed ${withUnits(estimate)}`, ...chance];
    const low = estimate - tensor.belowAt(i), high = estimate + tensor.aboveAt(i);
    const beyond = flag === FLAG.beyond ? ["deeper than calibration tested: coverage unknown"] : [];
    const kind = flag === FLAG.forecast ? "forecast" : "estimate";
    const told = flag === FLAG.infinite || !Number.isFinite(high - low) ? "infinite interval at this coverage" : `width ${withUnits(high - low)}`;
    return [where, `${kind} ${withUnits(estimate)}`, `lower ${show(low)}, upper ${withUnits(high)}`, told, ...beyond, ...chance];
  }

  const at = (cell) => {
    const index = state.index.slice();
    index[plane().rows] = cell.row;
    index[plane().columns] = cell.column;
    return index;
  };

  function paintAll() {
    const frame = frameOf(plane(), tensor, panels[0].canvas.clientWidth);
    for (const panel of panels) {
      panel.colours = { observed: rgb(cssColour("--surface")), outside: rgb(cssColour("--outside")) };
      paint(panel, tensor, plane(), base(), frame, state.outline && panel.kind.id !== "data", state.cursor, picked());
      const slice = others().map((k) => `${name(k)} ${tensor.axes[k].labels[state.index[k]]}`).join(", ");
      panel.canvas.setAttribute("aria-label", `${panel.kind.title}: ${name(plane().rows)} by ${name(plane().columns)}${slice ? " at " + slice : ""}. Arrow keys move the chosen entry.`);
    }
  }

  function paintSeries() {
    const along = state.along, axis = tensor.axes[along], count = tensor.shape[along];
    const index = state.index.slice();
    const estimate = [], band = [], seen = [], spans = [], hover = [], ends = [];
    for (let n = 0; n < count; n++) {
      index[along] = n;
      const i = tensor.flat(index), flag = tensor.flag[i], middle = tensor.estimateAt(i);
      const low = middle - tensor.belowAt(i), high = middle + tensor.aboveAt(i);
      const finite = Number.isFinite(low) && Number.isFinite(high);
      estimate.push([n, middle]);
      band.push([n, finite ? low : null, finite ? high : null]);
      ends.push(middle, low, high);
      if (flag === FLAG.observed) seen.push([n, middle]);
      else if (flag !== FLAG.outside && !finite) spans.push([n - 0.5, n + 0.5]);
      const here = index.slice();
      hover.push({ x: n, text: () => describe(here).join("\n") });
    }
    const joined = [];
    for (const span of spans) {
      const last = joined[joined.length - 1];
      if (last && last[1] === span[0]) last[1] = span[1]; else joined.push(span);
    }
    const spec = {
      label: `Series along ${axis.name}: estimate with its ${show(content.coverage)} band; ${seen.length} of ${count} observed, ${spans.length} with an infinite interval.`,
      height: 270,
      x: { title: axis.title, domain: [-0.5, count - 0.5], ticks: (k) => axisTicks(axis, k) },
      y: { title: content.title + (content.units ? ` (${content.units})` : ""), domain: domainOf(ends) },
      layers: [
        { kind: "spans", spans: joined }, { kind: "band", points: band }, { kind: "line", points: estimate },
        { kind: "dots", points: seen, radius: count > 300 ? 1.6 : 3 }, { kind: "rule", x: state.index[along] },
      ],
      hover, pick: (n) => { state.index[along] = n; refresh(); },
    };
    if (series) series.update(spec); else series = chart(find("series"), spec);
    const fixed = tensor.axes.map((one, k) => (k === along ? null : `${one.name} ${one.labels[state.index[k]]}`)).filter(Boolean).join(", ");
    find("series-title").textContent = `${content.title} along ${axis.name} at ${fixed}`;
    find("readout").textContent = describe(state.index).slice(1).join(" · ");
  }

  function move(k, to) {
    const index = Math.min(tensor.shape[k] - 1, Math.max(0, to));
    if (index === state.index[k]) return;
    state.index[k] = index;
    refresh();
  }

  let waiting = false;
  function refresh() {
    for (const k of others()) {
      const input = find("slider-" + k);
      if (!input) continue;
      input.value = state.index[k];
      const label = tensor.axes[k].labels[state.index[k]];
      input.setAttribute("aria-valuetext", label);
      find("place-" + k).textContent = label;
    }
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; paintAll(); paintSeries(); });
  }

  function stop() {
    if (state.playing === null) return;
    clearInterval(state.playing.timer);
    state.playing.button.textContent = "▶";
    state.playing.button.setAttribute("aria-label", "Play");
    state.playing = null;
  }

  function play(k, button) {
    if (state.playing) return stop();
    button.textContent = "❚❚";
    button.setAttribute("aria-label", "Pause");
    const timer = setInterval(() => move(k, (state.index[k] + 1) % tensor.shape[k]), 180);
    state.playing = { timer, button };
  }

  function buildSliders() {
    stop();
    find("sliders").replaceChildren(...others().map((k) => {
      const input = make("input", { type: "range", id: "slider-" + k, min: 0, max: tensor.shape[k] - 1, step: 1 });
      input.addEventListener("input", () => move(k, Number(input.value)));
      const step = (text, label, by) => {
        const button = make("button", { type: "button", "aria-label": `${label} ${name(k)}`, text });
        button.addEventListener("click", () => move(k, (state.index[k] + by + tensor.shape[k]) % tensor.shape[k]));
        return button;
      };
      const go = make("button", { type: "button", "aria-label": "Play", id: "play-" + k, text: "▶" });
      go.addEventListener("click", () => play(k, go));
      return make("div", { class: "slider" },
        make("label", { for: "slider-" + k }, tensor.axes[k].title, make("b", { id: "place-" + k })),
        input, make("div", { class: "steps" }, step("‹", "Previous", -1), go, step("›", "Next", 1)));
    }));
  }

  function onPlane() {
    state.cursor = null;
    state.along = others().length ? others()[0] : plane().columns;
    find("along").value = state.along;
    buildSliders();
    refresh();
  }

  function cellUnder(panel, event) {
    const edge = panel.canvas.getBoundingClientRect();
    return panel.box && cellAt(plane(), panel.box, event.clientX - edge.left, event.clientY - edge.top);
  }

  function choose(cell) {
    state.index = at(cell);
    state.cursor = null;
    refresh();
  }

  const KEYS = { ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
  function onKey(event) {
    const turn = { PageUp: 1, PageDown: -1 }[event.key];
    if (turn && others().length) move(others()[0], state.index[others()[0]] + turn);
    else if (event.key === "Enter") find("series-card").scrollIntoView({ block: "nearest" });
    else if (KEYS[event.key]) {
      const [across, up] = KEYS[event.key];
      move(plane().columns, state.index[plane().columns] + (plane().right ? across : -across));
      move(plane().rows, state.index[plane().rows] + (plane().up ? up : -up));
    } else return;
    event.preventDefault();
  }

  for (const panel of panels) {
    panel.canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType === "touch") return;
      state.cursor = cellUnder(panel, event);
      panel.canvas.dataset.cell = state.cursor ? `${state.cursor.row},${state.cursor.column}` : "";
      if (state.cursor) showTip(describe(at(state.cursor)).join("\n"), event.clientX, event.clientY); else hideTip();
      paintAll();
    });
    panel.canvas.addEventListener("pointerleave", () => { state.cursor = null; hideTip(); paintAll(); });
    panel.canvas.addEventListener("click", (event) => { const cell = cellUnder(panel, event); if (cell) choose(cell); });
    panel.canvas.addEventListener("keydown", onKey);
  }
  find("panels").replaceChildren(...panels.map((panel) => panel.figure));
  find("plane").replaceChildren(...tensor.planes.map((one, n) => {
    const rest = tensor.axes.filter((_, k) => k !== one.rows && k !== one.columns).map((axis) => axis.name).join(", ");
    return make("option", { value: n, text: `${name(one.rows)} × ${name(one.columns)}${rest ? ", slide " + rest : ""}` });
  }));
  find("along").replaceChildren(...tensor.axes.map((axis, k) => make("option", { value: k, text: axis.name })));
  find("plane").addEventListener("change", (event) => { state.plane = Number(event.target.value); onPlane(); });
  find("along").addEventListener("change", (event) => { state.along = Number(event.target.value); refresh(); });
  find("outline").addEventListener("change", (event) => { state.outline = event.target.checked; paintAll(); });
  find("series-card").append(keysOf(["dot", "observed"], ["line", "estimate"], ["band", `${show(content.coverage)} interval`], ["infinite", "infinite interval"]));
  find("thinned").textContent = tensor.note;
  find("thinned").hidden = !tensor.note;
  onPlane();
  let seen = find("panels").clientWidth;
  new ResizeObserver(() => { if (find("panels").clientWidth !== seen) { seen = find("panels").clientWidth; paintAll(); } }).observe(find("panels"));
  return { state, repaint: paintAll };
}
