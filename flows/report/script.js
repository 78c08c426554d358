const plots = JSON.parse(document.getElementById("plots").textContent);
const plotOf = (element) => plots[element.closest("figure").dataset.figure];
const create = (tag, properties, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// Show the facts of the mark under the pointer, or right next to it.
const tip = document.body.appendChild(create("div", { className: "tip", hidden: true }));
const around = [[0, 0], ...[4, 8].flatMap((r) => [[r, 0], [-r, 0], [0, r], [0, -r], [r, r], [-r, r], [r, -r], [-r, -r]])];
const readFacts = (element, x) => {
  const mark = element.closest("[data-mark]"), facts = mark && plotOf(mark).facts[mark.dataset.mark];
  if (!facts || element === mark) return null;
  let place = [...mark.children].indexOf(element);
  const n = Number(mark.dataset.columns);
  if (n) {
    const { left, width } = element.getBoundingClientRect();
    place = place * n + Math.min(n - 1, Math.floor(((x - left) / width) * n));
  }
  return create("dl", {}, ...facts[0].flatMap((name, k) => [
    create("dt", { textContent: name }), create("dd", { textContent: facts[1][k][place] })]));
};
const point = ({ target, clientX, clientY }) => {
  tip.hidden = true;
  if (!target.closest?.(".plot")) return;
  for (const [right, down] of around) {
    const elements = new Set(document.elementsFromPoint(clientX + right, clientY + down));
    const facts = [...elements].map((element) => readFacts(element, clientX)).filter(Boolean).slice(0, 3);
    if (!facts.length) continue;
    tip.replaceChildren(...facts);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, clientX + 14 + width > innerWidth ? clientX - width - 14 : clientX + 14)}px`;
    tip.style.top = `${clientY + 14 + height > innerHeight ? clientY - height - 14 : clientY + 14}px`;
    return;
  }
};
for (const name of ["pointermove", "pointerdown"]) document.addEventListener(name, point);
for (const name of ["scroll", "pointerleave"]) document.addEventListener(name, () => { tip.hidden = true; });

// A choice moves the marks along an axis, and names its ticks.
const steps = 9999;
const placeTicks = (low, high) => {
  const least = (high - low) / 8, power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= least), ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) ticks.push([k * step, `${+(k * step).toPrecision(9)}`.replace("-", "−")]);
  return ticks;
};
const move = (plot, side, option, { low, high, ticks }) => {
  const share = (value) => {
    const percent = (100 * (value - low)) / (high - low);
    return `${side === "x" ? percent : 100 - percent}%`;
  };
  plot.querySelector(`.${side}.label`).textContent = option.label;
  const names = ticks.map(([place, text]) => {
    const name = create("span", { textContent: text });
    name.style[side === "x" ? "left" : "top"] = share(place);
    return name;
  });
  plot.querySelector(`.${side}.names`).replaceChildren(...names);
  const lines = [...plot.querySelectorAll(`.${side}.grid line`)];
  ticks.slice(0, lines.length && ticks.length).forEach(([place], k) => {
    const line = lines[k] ?? lines[0].parentNode.appendChild(lines[0].cloneNode());
    for (const end of [1, 2]) line.setAttribute(side + end, share(place));
  });
  lines.slice(ticks.length).forEach((line) => line.remove());
  option.places.forEach((places, mark) => {
    const elements = plot.querySelector(`[data-mark="${mark}"]`).children;
    places.forEach((place, k) => elements[k].setAttribute(side, share(option.low + ((option.high - option.low) * place) / steps)));
  });
};
const choose = (figure) => {
  const selects = [...figure.querySelectorAll("select")], { choices, equal } = plotOf(figure);
  const chosen = selects.map((select, k) => choices[k].options[select.selectedIndex]);
  const half = Math.max(...chosen.map(({ low, high }) => high - low)) / 2;
  chosen.forEach((option, k) => {
    const middle = (option.low + option.high) / 2, low = middle - half, high = middle + half;
    const axis = equal ? { low, high, ticks: placeTicks(low, high) } : option;
    move(figure.querySelector(".plot"), choices[k].axis, option, axis);
  });
};
// A browser keeps what was chosen when it loads a page again.
for (const select of document.querySelectorAll("select")) {
  select.addEventListener("change", () => choose(select.closest("figure")));
  if (!select.selectedOptions[0].defaultSelected) choose(select.closest("figure"));
}

for (const section of document.querySelectorAll(".numbers")) {
  const table = section.querySelector("table");
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
  section.querySelector(".copy").addEventListener("click", (event) => {
    getSelection().selectAllChildren(table);
    const copied = document.execCommand("copy");
    getSelection().removeAllRanges();
    event.target.textContent = copied ? "Copied" : "Select and copy by hand";
  });
}
