const plots = JSON.parse(document.getElementById("plots").textContent);
const drawn = new Map(plots.map((plot) => [plot.target_id, Bokeh.embed.embed_item(plot)]));
const choose = async (select) => {
  const [view] = await drawn.get(select.dataset.plot), chosen = select.selectedOptions[0];
  const { axis: side } = select.dataset, plot = view.model, axis = plot[side === "x" ? "below" : "left"][0];
  for (const { glyph } of plot.renderers) glyph[side] = { field: chosen.value };
  if (chosen.dataset.order) {
    select.names ??= axis.major_label_overrides;
    const order = chosen.dataset.order.split(" ");
    axis.major_label_overrides = new Map(order.map((name, place) => [place, select.names.get(Number(name))]));
  } else axis.axis_label = chosen.text;
};
// A browser keeps what was chosen when it loads a page again.
for (const select of document.querySelectorAll("select")) {
  select.addEventListener("change", () => choose(select));
  if (!select.selectedOptions[0].defaultSelected) choose(select);
}
// Canvases are painted once, in the colours of the scheme.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
const table = document.getElementById("parameters");
if (table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const key = (row, k) => (k ? Number(row.cells[k].dataset.value) : row.cells[0].textContent);
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : (isNaN(a) - isNaN(b)) || b - a);
  heads.forEach((head, k) => head.firstChild.addEventListener("click", () => {
    const turned = head.ariaSort === (k ? "descending" : "ascending") ? -1 : 1;
    const rows = [...body.rows].sort((a, b) => turned * compare(key(a, k), key(b, k)));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.ariaSort = (turned > 0) === (k > 0) ? "descending" : "ascending";
    body.append(...rows);
  }));
  document.getElementById("copy").addEventListener("click", (event) => {
    getSelection().selectAllChildren(table);
    const copied = document.execCommand("copy");
    getSelection().removeAllRanges();
    event.target.textContent = copied ? "Copied" : "Select and copy by hand";
  });
}
