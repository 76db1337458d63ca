// The charts beside the explorer: coverage, widths, weights, and how the fit went; each with its numbers in a table.

function card(title, words, ...parts) {
  return make("figure", { class: "card" }, make("h3", { text: title }), make("p", { text: words }), ...parts);
}

const keysOf = (...keys) => make("div", { class: "keys" }, ...keys.map(([kind, text]) => make("span", {}, make("i", { class: "swatch " + kind }), text)));

function tableOf(columns, rows, taken) {
  const numeric = columns.map((_, c) => rows.every((row) => row[c] === null || typeof row[c] === "number"));
  const cell = (tag, c, text) => make(tag, { class: numeric[c] ? "number" : "", text });
  const head = make("tr", {}, ...columns.map((name, c) => cell("th", c, name)));
  const body = rows.map((row, r) => make("tr", { class: taken === r ? "taken" : "" }, ...row.map((v, c) => cell("td", c, typeof v === "number" ? show(v) : v === null ? "none" : String(v)))));
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

const numbersOf = (columns, rows) => make("details", {}, make("summary", { text: "The numbers" }), tableOf(columns, rows));

function addChart(host, spec) {
  const place = make("div", { class: "chart" });
  host.append(place);
  chart(place, spec);
}

// Coverage found against nominal coverage, with a bar for each level.
function coverageChart(figure, label, rows) {
  const levels = rows.map((r) => r.level);
  const low = Math.max(0, Math.min(...levels, ...rows.map((r) => r.low)) - 0.03);
  addChart(figure, {
    label,
    x: { title: "nominal coverage", domain: [low, 1] }, y: { title: "coverage found", domain: [low, 1.005] },
    layers: [
      { kind: "line", class: "quiet", points: [[low, low], [1, 1]] },
      { kind: "errors", points: rows.map((r) => [r.level, Math.max(low, r.low), Math.min(1, r.high)]) },
      { kind: "dots", class: "main", radius: 4.5, points: rows.map((r) => [r.level, r.coverage]) },
    ],
    hover: rows.map((r) => ({ x: r.level, text: `nominal ${show(r.level)}\nfound ${show(r.coverage)}${r.words}` })),
  });
}

function auditCard(host, rows, verdict) {
  if (!rows.length) return;
  const figure = card("Coverage found by the audit", "Coverage of observed entries that were hidden again. The dashed line is the nominal coverage; bars are two standard errors.");
  host.append(figure);
  coverageChart(figure, `Coverage found by the audit against nominal coverage, at ${rows.length} levels.`, rows.map((r) => ({
    level: r.level, coverage: r.coverage, low: r.coverage - 2 * r.standard_error, high: r.coverage + 2 * r.standard_error, words: ` ± ${show(r.standard_error, 2)}`,
  })));
  figure.append(...verdict.map((line) => make("p", { text: line })));
  figure.append(numbersOf(["nominal", "found", "standard error"], rows.map((r) => [r.level, r.coverage, r.standard_error])));
}

function hiddenCard(host, rows, audited) {
  if (!rows.length) {
    if (!audited) host.append(make("figure", { class: "card whole" }, make("h3", { text: "Coverage" }), make("p", { text: "No audit was run, so the coverage is not checked. Run audit = fitted.audit() and write the report with audit=audit to see it here." })));
    return;
  }
  const kind = rows[0].kind, parts = rows[0].parts;
  const how = kind === "rounds" ? `Entries that calibration hid in ${parts} rounds. The interval of an entry is computed from the errors of the other rounds.` : `Calibration entries in ${parts} folds. The interval of an entry is computed from the errors of the other folds.`;
  const figure = card("Coverage of hidden entries", `${how} Bars show where most ${kind} lie. This tests the calibration; an audit (result.source.audit()) repeats the whole fit.`);
  host.append(figure);
  coverageChart(figure, `Coverage of hidden entries against nominal coverage, at ${rows.length} levels.`, rows.map((r) => ({
    level: r.level, coverage: r.found, low: r.low, high: r.high, words: `\nmost ${kind} ${show(r.low, 3)} to ${show(r.high, 3)}`,
  })));
  figure.append(numbersOf(["nominal", "found", `most ${kind} from`, "to"], rows.map((r) => [r.level, r.found, r.low, r.high])));
}

// Coverage found in groups, one place per row; the dashed line is the nominal coverage.
function groupCard(host, title, words, across, rows) {
  if (rows.length < 2) return;
  const figure = card(title, words);
  host.append(figure);
  const nominal = rows[0].level, ends = rows.flatMap((r) => [r.coverage - 2 * r.standard_error, r.coverage]);
  const low = Math.max(0, Math.min(nominal, ...ends) - 0.03);
  addChart(figure, {
    label: `${title}: coverage found by the audit in ${rows.length} groups; nominal coverage ${nominal}.`, height: 190,
    x: { title: across, domain: [-0.5, rows.length - 0.5], ticks: rows.map((r, k) => [k, r.group]) },
    y: { title: "coverage found", domain: [low, 1.005] },
    layers: [
      { kind: "line", class: "quiet", points: [[-0.5, nominal], [rows.length - 0.5, nominal]] },
      { kind: "errors", points: rows.map((r, k) => [k, Math.max(low, r.coverage - 2 * r.standard_error), Math.min(1, r.coverage + 2 * r.standard_error)]) },
      { kind: "dots", class: "main", radius: 4.5, points: rows.map((r, k) => [k, r.coverage]) },
    ],
    hover: rows.map((r, k) => ({ x: k, text: `${across} ${r.group}\nnominal ${show(r.level)}\nfound ${show(r.coverage)} ± ${show(r.standard_error, 2)}` })),
  });
  figure.append(numbersOf([across, "found", "standard error"], rows.map((r) => [r.group, r.coverage, r.standard_error])));
}

// Coverage of the past, one place per slice: what values that arrived later said about their intervals.
function pastCard(host, past) {
  if (!past) return;
  const rows = past.rows, error = (r) => 2 * (r.standard_error || 0);
  const figure = card("Coverage over time", "Intervals that were given earlier, against values that arrived later. The dashed line is the nominal coverage; the band is two standard errors, with the blocks of a slice as independent observations.");
  figure.classList.add("whole");
  host.append(figure);
  const low = Math.max(0, Math.min(...rows.map((r) => Math.min(r.nominal, r.coverage) - error(r))) - 0.02);
  const last = rows.length - 1, step = Math.max(1, Math.ceil(rows.length / 8));
  addChart(figure, {
    label: `Coverage over ${rows.length} slices along ${past.axis}.`, height: 230,
    x: { title: past.axis, domain: [-0.5, last + 0.5], ticks: rows.map((r, k) => [k, r.slice]).filter((_, k) => k % step === 0) },
    y: { title: "coverage found", domain: [low, 1.005] },
    layers: [
      { kind: "band", points: rows.map((r, k) => [k, Math.max(low, r.coverage - error(r)), Math.min(1, r.coverage + error(r))]) },
      { kind: "line", class: "quiet", points: rows.length > 1 ? rows.map((r, k) => [k, r.nominal]) : [[-0.5, rows[0].nominal], [0.5, rows[0].nominal]] },
      { kind: "line", points: rows.map((r, k) => [k, r.coverage]) },
      { kind: "dots", class: "main", radius: rows.length > 60 ? 2 : 4, points: rows.map((r, k) => [k, r.coverage]) },
    ],
    hover: rows.map((r, k) => ({ x: k, text: `${past.axis} ${r.slice}\n${r.entries.toLocaleString("en")} entries\nnominal ${show(r.nominal)}\nfound ${show(r.coverage)} ± ${show(r.standard_error, 2)}\ninterval score ${show(r.interval_score)}` })),
  });
  figure.append(...past.summary.map((line) => make("p", { text: line })));
  if (past.blocks.length > 1) figure.append(make("p", { text: "Where intervals fail, the lowest coverage first:" }), tableOf(["part", "entries", "nominal", "found"], past.blocks.slice(0, 5).map((b) => [b.block, b.entries, b.nominal, b.coverage])));
  figure.append(numbersOf([past.axis, "entries", "nominal", "found", "standard error", "interval score"], rows.map((r) => [r.slice, r.entries, r.nominal, r.coverage, r.standard_error, r.interval_score])));
}

// Widths by something, one place per row, with the share of infinite intervals in a strip below.
function widthCard(host, title, words, across, rows) {
  if (!rows.length) return;
  const figure = card(title, words);
  host.append(figure);
  const spots = rows.map((_, k) => k);
  const ticks = rows.map((r, k) => [k, r.tick ?? r.label]);
  const x = { domain: [-0.5, rows.length - 0.5], ticks };
  const infinite = rows.some((r) => r.infinite_share > 0);
  const shown = rows.map((r, k) => ({
    x: k,
    text: `${across} ${r.label}\n${r.count.toLocaleString("en")} filled entries\nmedian width ${withUnits(r.median)}\n10 % to 90 % quantile ${show(r.low)} to ${show(r.high)}\ninfinite ${percent(r.infinite_share)}`,
  }));
  addChart(figure, {
    label: `${title}: median and spread of finite widths in ${rows.length} groups.`, height: 190, left: 62,
    x: infinite ? x : { ...x, title: across },
    y: { title: `width${content.units ? ` (${content.units})` : ""}`, domain: domainOf(rows.flatMap((r) => [r.low, r.median, r.high]), { zero: true }) },
    layers: [
      { kind: "band", points: rows.map((r, k) => [k, r.low, r.high]) }, { kind: "line", points: rows.map((r, k) => [k, r.median]) },
      { kind: "dots", class: "main", points: rows.map((r, k) => [k, r.median]) },
    ],
    hover: shown,
  });
  if (infinite) addChart(figure, {
    label: `Share of infinite intervals in the same groups.`, height: 118, left: 62,
    x: { ...x, title: across }, y: { title: "infinite share", domain: [0, 1], ticks: [[0, "0 %"], [1, "100 %"]] },
    layers: [{ kind: "bars", points: spots.map((k) => [k - 0.45, k + 0.45, rows[k].infinite_share]) }],
    hover: shown,
  });
  figure.append(
    keysOf(["line", "median of finite widths"], ["band", "10 % to 90 % quantile"]),
    numbersOf([across, "entries", "10 % quantile", "median", "90 % quantile", "infinite share"], rows.map((r) => [r.label, r.count, r.low, r.median, r.high, r.infinite_share])),
  );
}

function levelCard(host, rows) {
  if (!rows.length) return;
  const figure = card("Width and coverage", "A higher coverage gives wider intervals, and infinite ones where the calibration entries do not suffice. result.at(coverage) changes the coverage without a new fit.");
  host.append(figure);
  const domain = [rows[0].coverage, 1];
  const rule = { kind: "rule", x: content.coverage, text: "this result" };
  const shown = rows.map((r) => ({ x: r.coverage, text: `coverage ${show(r.coverage)}\nmedian finite width ${withUnits(r.median)}\ninfinite ${percent(r.infinite_share)}` }));
  const curve = (y, key, kind) => ({ y, left: 62, height: key === "median" ? 190 : 150, layers: [{ kind: "line", class: kind, points: rows.map((r) => [r.coverage, r[key]]) }, { kind: "dots", class: kind || "main", radius: 2.6, points: rows.map((r) => [r.coverage, r[key]]) }, rule], hover: shown });
  addChart(figure, { label: "Median finite width against coverage.", x: { domain }, ...curve({ title: `median finite width${content.units ? ` (${content.units})` : ""}`, domain: domainOf(rows.map((r) => r.median), { zero: true }) }, "median", "") });
  const most = Math.max(0.02, ...rows.map((r) => r.infinite_share));
  addChart(figure, { label: "Share of infinite intervals against coverage.", x: { title: "coverage", domain }, ...curve({ title: "infinite share", domain: [0, 1.08 * most], format: percent }, "infinite_share", "alt") });
  figure.append(numbersOf(["coverage", "median finite width", "infinite share"], rows.map((r) => [r.coverage, r.median, r.infinite_share])));
}

function weightCard(host, weights) {
  if (!weights) return;
  const share = weights.effective / weights.count;
  const figure = card("Weights of the calibration entries", `The effective sample size is ${Math.round(weights.effective).toLocaleString("en")} of ${weights.count.toLocaleString("en")} calibration entries (${percent(share)}); the largest weight is ${percent(weights.largest)} of the weight. The further the curve lies above the dashed one, the fewer entries decide.`);
  host.append(figure);
  const even = weights.entries.map((n) => [n, n / weights.count]);
  addChart(figure, {
    label: `Share of the weight of the entries with the largest weights; effective sample size ${show(weights.effective, 3)} of ${weights.count}.`,
    x: { title: "entries, by weight", domain: [1, Math.max(2, weights.count)], log: true },
    y: { title: "share of the weight", domain: [0, 1.02], ticks: [0, 0.25, 0.5, 0.75, 1].map((v) => [v, percent(v)]) },
    layers: [
      { kind: "line", class: "quiet", points: even }, { kind: "line", points: weights.entries.map((n, k) => [n, weights.share[k]]) },
      { kind: "rule", x: Math.max(1, weights.effective), text: "effective size" },
    ],
    hover: weights.entries.map((n, k) => ({ x: n, text: `the ${n.toLocaleString("en")} largest weights\n${percent(weights.share[k])} of the total` })),
  });
  figure.append(keysOf(["line", "these weights"]));
}

function lossCard(host, loss, stopped) {
  if (loss.length < 2) return;
  const figure = card("Fit of the propensity model", `${loss.length} steps, loss ${show(loss[0])} to ${show(loss[loss.length - 1], 5)}.${stopped ? ` Reason to stop: ${stopped}.` : ""}`);
  host.append(figure);
  const best = Math.min(...loss), span = loss.map((v) => v - best);
  const least = Math.min(...span.filter((v) => v > 0), Infinity);
  const log = Number.isFinite(least) && Math.max(...span) / least > 20;
  const points = loss.map((v, k) => [k, log ? (v > best ? v - best : null) : v]);
  addChart(figure, {
    label: `Loss of the propensity model over ${loss.length} steps.`, height: 220,
    x: { title: "step", domain: [0, loss.length - 1] },
    y: log ? { title: "loss above its best", domain: [least, Math.max(...span)], log: true } : { title: "loss", domain: domainOf(loss) },
    layers: [{ kind: "line", points }, { kind: "dots", class: "main", radius: 2.2, points }],
    hover: loss.map((v, k) => ({ x: k, text: `step ${k}\nloss ${show(v, 6)}` })),
  });
}

function choiceCard(choice) {
  const figure = make("figure", { class: "card" }, make("h3", {}, choice.what + ": ", make("span", { class: "taken", text: choice.taken })), make("p", { text: choice.because }));
  const rows = choice.candidates;
  if (!rows.length) return figure;
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const values = rows.map((row) => columns.map((key) => { const v = row[key]; return v === undefined || v === null ? null : typeof v === "object" ? JSON.stringify(v) : v; }));
  const bare = (text) => String(text).replace(/[^0-9a-z.]+/gi, " ").trim();
  const taken = values.findIndex((row) => [bare(row[0]), bare(row[0]).replaceAll("x", " ")].includes(bare(choice.taken)));
  const measure = columns.findIndex((_, c) => c > 0 && values.every((row) => isNumber(row[c])) && !/rank/.test(columns[c]));
  const named = new Set(values.map((row) => String(row[0]))).size === rows.length && values.every((row) => isNumber(row[0]) || !/[[{]/.test(String(row[0])));
  if (measure > 0 && rows.length > 2 && named) {
    const points = values.map((row, k) => [k, row[measure]]);
    addChart(figure, {
      label: `${columns[measure]} of ${rows.length} candidates for the ${choice.what}.`, height: 165,
      x: { title: columns[0], domain: [-0.4, rows.length - 0.6], ticks: values.map((row, k) => [k, isNumber(row[0]) ? show(row[0], 3) : String(row[0])]) },
      y: { title: columns[measure], domain: domainOf(points.map((p) => p[1])) },
      layers: [{ kind: "line", class: "alt", points }, { kind: "dots", class: "alt", points }, { kind: "dots", class: "main", radius: 5.5, points: points.filter((_, k) => k === taken) }],
      hover: values.map((row, k) => ({ x: k, text: columns.map((c, j) => `${c} ${typeof row[j] === "number" ? show(row[j], 5) : row[j]}`).join("\n") })),
    });
  }
  const table = tableOf(columns, values, taken);
  figure.append(make("details", {}, make("summary", { text: `${rows.length} candidates` }), table));
  return figure;
}

function evidence() {
  const given = content.evidence;
  const trust = find("trust"), fit = find("fit");
  pastCard(trust, given.past);
  auditCard(trust, given.audit, given.verdict);
  hiddenCard(trust, given.hidden, given.audit.length > 0);
  groupCard(trust, "Coverage by depth inside gaps", "Hidden entries of the audit by their distance to the nearest remaining entry. The dashed line is the nominal coverage; bars are two standard errors.", "distance in entries", given.audit_by_depth);
  levelCard(trust, given.coverage);
  weightCard(trust, given.weights);
  widthCard(trust, "Width by probability of being observed", "Entries with a low probability of being observed resemble fewer calibration entries. Their intervals can be wider.", "probability of being observed", given.propensity);
  widthCard(trust, "Width by depth inside gaps", "Depth is the distance to the nearest observed entry along ordered axes.", "distance in entries", given.depth);
  lossCard(fit, given.loss, given.stopped);
  find("choices").replaceChildren(...content.choices.map(choiceCard));
  if (!fit.children.length && !content.choices.length) fit.append(make("p", { class: "hint", text: "No setting was chosen automatically." }));
}
