/* The comparison of each subject with the first. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, view, titleLink } = C;

  function comparisonRow(row) {
    const effect = !row.significant
      ? "noise"
      : row.improved === true
        ? "better"
        : row.improved === false
          ? "worse"
          : "differs";
    const noise = row.too_few ? "cannot tell" : "within noise";
    const words = { noise, better: "better", worse: "worse", differs: "differs" }[effect];
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
      h("td", {}, h("span", { class: `effect effect-${effect}` }, words)),
      h("td", { class: "numeric" }, C.metricText(row, row.a)),
      h("td", { class: "numeric" }, C.metricText(row, row.b)),
      h("td", { class: "numeric", "data-column": "p" }, C.chanceText(row.p)),
      h("td", { class: "words" }, row.sentence || ""),
    );
  }

  function comparisonBlock(comparison) {
    const [a, b] = [comparison.a, comparison.b].map(
      (id) => (view.subjects.find((subject) => subject.id === id) || { title: id }).title,
    );
    const title = `${b}, against ${a}`;
    const heads = [
      ["Metric"],
      [`Difference, ${view.levelText.replace(" ", "\u00a0")} interval`, "numeric"],
      ["Effect"],
      [a, "numeric"],
      [b, "numeric"],
      ["p", "numeric"],
      ["In words", "words"],
    ];
    const name = (text) => h("span", { class: "name" }, C.breakable(text));
    const head = h(
      "tr",
      {},
      heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, name(text))),
    );
    const table = h(
      "table",
      { class: "data", "data-table": "comparison" },
      h("thead", {}, head),
      h("tbody", {}, comparison.rows.map(comparisonRow)),
    );
    return h(
      "div",
      { class: "comparison", "data-comparison": comparison.b },
      h("h3", {}, C.breakable(title)),
      h("p", { class: "sentence" }, comparison.summary),
      C.scroller(table, { label: title }),
    );
  }

  const comparisonSection = () =>
    h(
      "section",
      { class: "comparisons", "aria-label": "Comparison" },
      h("h2", {}, "What differs, and what is noise"),
      view.page.comparisons.map(comparisonBlock),
    );

  Object.assign(C, { comparisonSection });
})();
