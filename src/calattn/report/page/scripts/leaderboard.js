/* The leaderboard: one row a run, sorted by any column, filtered by any fact, the best of the same samples marked. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, missing, whole } = C;

  const page = C.readDocument();
  C.themeSwitch(document.getElementById("theme"));
  C.printing(document.getElementById("print"));
  if (!page) return;

  const MANY = 9; // columns before some start hidden
  const facts = [...new Set(page.rows.flatMap((row) => Object.keys(row.facts)))];
  const factOf = (row, name) => row.facts[name] ?? null;
  const valueOf = (row, metric) => row.values[metric.name]?.value;
  const distinct = (name) => {
    const known = page.rows.map((row) => factOf(row, name)).filter((value) => value !== null);
    return [...new Set(known.map(String))];
  };
  const chosen = new Map(); // fact → the text it must have

  function titleCell(row) {
    const name = C.breakable(row.title),
      title = C.isNearby(row.href) ? h("a", { href: row.href }, name) : name;
    return [title, row.note ? h("span", { class: "why" }, row.note) : null];
  }

  function metricCell(row, metric) {
    const found = row.values[metric.name];
    if (!found) return C.DASH;
    const range = C.intervalText(metric, found.low, found.high);
    const text = found.infinite ? "∞" : C.metricNumber(metric, found.value);
    return [h("span", { class: "value" }, text), range ? h("span", { class: "range" }, range) : null];
  }

  function factText(row, name) {
    const value = factOf(row, name);
    return value === null ? C.DASH : typeof value === "number" ? C.short(value) : String(value);
  }

  function columnsOf() {
    const metrics = page.metrics.map((metric) => ({
      key: `metric-${metric.name}`,
      title: `${metric.title}, ${metric.unit}`,
      help: metric.better === "high" ? "higher is better" : "lower is better",
      numeric: true,
      metric,
      value: (row) => valueOf(row, metric),
      cell: (row) => metricCell(row, metric),
    }));
    const known = facts.map((name) => ({
      key: `fact-${name}`,
      title: name,
      fact: name,
      numeric: page.rows.every((row) => typeof (factOf(row, name) ?? 0) === "number"),
      value: (row) => factOf(row, name),
      text: (row) => factText(row, name),
    }));
    return [
      { key: "title", title: "Run", header: true, cell: titleCell },
      ...metrics,
      ...known,
    ];
  }

  const columns = columnsOf();
  const named = (name) => page.metrics.find((metric) => metric.name === name);
  const first = named("nll") || named("ece") || page.metrics[0];
  const sort = first ? { key: `metric-${first.name}`, descending: first.better === "high" } : null;
  const board = C.dataTable({ columns, rows: page.rows, label: "Runs", name: "leaderboard", sort });

  /** The rows that are shown, by group: only predictions of the same samples have a best. */
  function shownEntries(metric) {
    const groups = new Map();
    for (const { row, line } of board.entries) {
      if (line.hidden || missing(valueOf(row, metric))) continue;
      groups.set(row.group, [...(groups.get(row.group) || []), row]);
    }
    return groups;
  }

  /** The best of the rows, where its paired difference from each other one is beyond chance. */
  function clearBest(rows, metric) {
    const sign = metric.better === "high" ? -1 : 1,
      beaten = (row) => row.better_than[metric.name] || [];
    const [best, ...others] = [...rows].sort((a, b) => sign * (valueOf(a, metric) - valueOf(b, metric)));
    const clear = (row) => beaten(best).includes(page.rows.indexOf(row));
    return others.length && others.every(clear) ? best : null;
  }

  function markBest() {
    for (const metric of page.metrics) {
      const winners = new Set([...shownEntries(metric).values()].map((rows) => clearBest(rows, metric)));
      for (const { row, line } of board.entries) {
        const cell = line.querySelector(`[data-column="${CSS.escape(`metric-${metric.name}`)}"]`);
        const mine = winners.has(row);
        cell.classList.toggle("best", mine);
        if (mine) cell.setAttribute("title", "best of the runs shown on the same samples, by more than chance");
        else cell.removeAttribute("title");
      }
    }
  }

  const search = h("input", {
    type: "search",
    placeholder: "Filter the runs",
    "aria-label": "Filter the runs",
    "data-control": "filter",
    input: () => narrow(),
  });
  const found = h("span", { class: "dim", role: "status", "data-live": "found" });

  function narrow() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const count = board.filter((row) => {
      const text = [row.title, row.note ?? "", ...facts.map((name) => factText(row, name))].join(" ").toLowerCase();
      return (
        words.every((word) => text.includes(word)) &&
        [...chosen].every(([name, value]) => String(factOf(row, name)) === value)
      );
    });
    found.textContent =
      count === page.rows.length ? `${whole(count)} runs` : `${whole(count)} of ${whole(page.rows.length)} runs`;
    markBest();
  }

  function factSelect(name) {
    const values = distinct(name);
    const measured = page.rows.some(
      (row) => typeof factOf(row, name) === "number" && !Number.isInteger(factOf(row, name)),
    );
    // Nobody looks for a fitted temperature of 1.5327.
    if (measured || values.length < 2 || values.length > 40) return null;
    const ordered = [...values].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const change = () => {
      if (select.value === "any") chosen.delete(name);
      else chosen.set(name, ordered[Number(select.value)]);
      narrow();
    };
    const options = [
      h("option", { value: "any" }, "any"),
      ordered.map((value, place) => h("option", { value: place }, value)),
    ];
    const select = h("select", { "data-fact": name, change }, options);
    return h("label", { class: "field" }, h("span", {}, name), select);
  }

  function showColumn(key, shown) {
    for (const cell of board.element.querySelectorAll(`[data-column="${CSS.escape(key)}"]`)) cell.hidden = !shown;
  }

  /** Which columns to see. Of many, facts that never vary and metrics after the sixth start hidden. */
  function columnChooser() {
    const many = columns.length > MANY;
    const optional = columns.filter((column) => column.key !== "title");
    const boxes = optional.map((column) => {
      const dull = column.fact ? distinct(column.fact).length < 2 : page.metrics.indexOf(column.metric) >= 6;
      const box = h("input", {
        type: "checkbox",
        "data-column-choice": column.key,
        change: () => showColumn(column.key, box.checked),
      });
      box.checked = !(many && dull);
      showColumn(column.key, box.checked);
      return h("li", {}, h("label", {}, box, column.title));
    });
    return h("details", { class: "columns no-print" }, h("summary", {}, "Columns"), h("ul", {}, boxes));
  }

  const tools = h(
    "div",
    { class: "board-tools no-print", role: "group", "aria-label": "Filters" },
    search,
    facts.map(factSelect),
    found,
  );
  document.body.classList.add("wide");
  const parts = [C.remarkText(page.remark), tools, columnChooser(), h("div", { class: "board" }, board.element)];
  document.getElementById("content").append(...parts.filter(Boolean));
  const meta = [`${whole(page.rows.length)} runs`, page.note, C.madeText(page)];
  document.getElementById("meta").textContent = meta.join(" · ");
  document.getElementById("colophon").textContent =
    `★ marks the best of the runs shown on the same samples, where it is so by more than chance. ` +
    "In brackets: intervals. This file works without a network.";
  narrow();
})();
