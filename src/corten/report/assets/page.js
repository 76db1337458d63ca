// Puts the words in their places, then the figures.

function words() {
  find("title").textContent = content.title;
  find("about").textContent = [content.about, content.shape, content.units].filter(Boolean).join(" · ");
  find("headline").replaceChildren(...content.headline.map((one) => make("div", {},
    make("dt", {}, make("span", { class: "value", text: one.value }, make("small", { text: one.unit ? " " + one.unit : "" })), one.label), make("dd", {}, make("span", { class: "note", text: one.note })))));
  find("notices").replaceChildren(...content.notices.map((one) => make("li", { class: ["warn", "info", "good"].includes(one.kind) ? one.kind : "info", text: one.text })));
  find("footnote").textContent = content.footnote;
  find("reproduce").textContent = content.reproduce;
  find("command").textContent = content.command;
  find("command-part").hidden = !content.command;
  const pairs = (rows) => rows.map(([key, value]) => make("tr", {}, make("td", { text: key }), make("td", { text: value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value) })));
  find("settings").replaceChildren(...pairs(content.settings));
  find("numbers").replaceChildren(...pairs(content.numbers));
}

async function start() {
  words();
  evidence();
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser is too old to unpack the data (it lacks DecompressionStream); any browser of 2023 or later can");
  }
  const [tensor, maps] = await Promise.all([loadTensor(), loadMaps()]);
  const view = explorer(tensor, maps);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", view.repaint);
  addEventListener("beforeprint", () => { document.documentElement.dataset.print = ""; view.repaint(); });
  addEventListener("afterprint", () => { delete document.documentElement.dataset.print; view.repaint(); });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start().catch((problem) => {
  find("problem").textContent = `The pictures could not be drawn: ${problem.message}`;
  find("problem").hidden = false;
});
