/* The comparison of each subject with the first: a forest plot, and the tables behind a fold. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, view, titleLink } = C;

  const titleOf = (id) => view.subjects.find((subject) => subject.id === id).title;

  function comparisonRow(row) {
    const effect = C.effectOf(row);
    return h(
      "tr",
      { "data-metric": row.name },
      h("th", { scope: "row" }, titleLink(row)),
      h(
        "td",
        { class: "numeric" },
        C.metricNumber(row, row.difference, { signed: true }),
        " ",
        h("span", { class: "dim range" }, C.intervalText(row, row.low, row.high, { signed: true })),
      ),
      h("td", {}, h("span", { class: `effect effect-${effect}` }, C.effectText(row))),
      h("td", { class: "numeric" }, C.metricText(row, row.a)),
      h("td", { class: "numeric" }, C.metricText(row, row.b)),
      h("td", { class: "numeric", "data-column": "p" }, C.chanceText(row.p_value)),
      h("td", { class: "words" }, row.sentence),
    );
  }

  function comparisonTable(comparison) {
    const [a, b] = [comparison.a, comparison.b].map(titleOf);
    const title = `${b}, against ${a}`;
    const columns = [
      ["Metric"],
      [`Difference, ${view.levelText.replace(" ", "\u00a0")} interval`, "numeric"],
      ["Effect"],
      [a, "numeric"],
      [b, "numeric"],
      ["p", "numeric"],
      ["In words", "words"],
    ];
    const name = (text) => h("span", { class: "name" }, C.breakable(text));
    const heads = columns.map(([text, kind]) => h("th", { scope: "col", class: kind }, name(text)));
    const lines = comparison.rows.map(comparisonRow);
    return h(
      "div",
      { class: "comparison", "data-comparison": comparison.b },
      h("h3", {}, C.breakable(title)),
      C.plainTable({ name: "comparison", label: title, heads, lines }),
    );
  }

  /** The main metrics of each comparison, those in points on one axis and NLL on its own. */
  function forestGroups(comparisons) {
    const several = comparisons.length > 1;
    const rows = comparisons.flatMap((one) =>
      one.rows
        .filter((row) => one.main.includes(row.name))
        .map((row) => ({
          ...C.differenceRow(several ? titleOf(one.b) : row.title, row, `${titleOf(one.b)}: ${row.sentence}.`),
          metric: row,
        })),
    );
    const metrics = [...new Set(rows.map(({ metric }) => metric.name))];
    const from = `difference from ${C.fitted(titleOf(comparisons[0].a), 30)}`;
    const group = (title, mine) => ({
      title,
      axis: `${from}, ${C.unitOf(mine[0].metric)}`,
      unit: `difference, ${C.unitOf(mine[0].metric)}`,
      factor: mine[0].metric.factor,
      rows: mine,
    });
    const of = (name) => rows.filter(({ metric }) => metric.name === name);
    if (several) return metrics.map((name) => group(of(name)[0].metric.title, of(name)));
    const units = [...new Set(rows.map(({ metric }) => metric.unit))];
    return units.map((unit) =>
      group(
        unit === "%" ? "in points" : `in ${unit}`,
        rows.filter(({ metric }) => metric.unit === unit),
      ),
    );
  }

  function comparisonSection() {
    const { comparisons, remark } = view.page;
    const summaries = comparisons.map((one) => h("p", { class: "sentence", "data-summary": one.b }, one.summary));
    const label = `Differences with ${view.levelText} intervals. ${comparisons.map((one) => one.summary).join(" ")}`;
    const forest = C.forestChart("forest", forestGroups(comparisons), label);
    const tables = h(
      "details",
      { class: "tables" },
      h("summary", {}, "Show every number of the comparison"),
      comparisons.map(comparisonTable),
    );
    const crossing =
      `Paired differences with ${view.levelText} intervals, all at T = 1: as the files are. ` +
      "An interval that crosses zero is within noise.";
    const body = [summaries, C.remarkText(remark), forest.element, C.note(crossing), tables];
    return C.section("forest", "Comparison", "What differs, and what is noise", body);
  }

  Object.assign(C, { comparisonSection });
})();
