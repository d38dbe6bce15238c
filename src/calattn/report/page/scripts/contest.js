/* A contest of calibrators: who leads, by how much, and what is chance. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, view } = C;

  function contestRow(row, { metrics, leader }) {
    const number = (name) => {
      const { value } = row.after[name],
        infinite = name === "nll" && C.missing(value);
      return h("td", { class: "numeric" }, infinite ? "∞" : C.metricNumber(metrics.find((one) => one.name === name), value));
    };
    return h(
      "tr",
      { "data-method": row.method },
      h("th", { scope: "row" }, row.method, row.method === leader ? h("span", { class: "dim" }, " leads") : null),
      metrics.map((metric) => number(metric.name)),
      h("td", { class: "numeric" }, C.missing(row.seconds) ? C.DASH : C.fixed(row.seconds, 2)),
    );
  }

  function contestTable(contest) {
    const heads = C.headsOf(["Method", ...contest.metrics.map((one) => `${one.title}, ${one.unit}`), "fit, s"]);
    const rows = [{ method: "(as it is)", after: contest.before }, ...contest.methods];
    return C.plainTable({ name: "contest", label: "All methods", heads, lines: rows.map((row) => contestRow(row, contest)) });
  }

  /** Differences from the predictions as they are, one group a metric, methods as rows. */
  function groupsOf(contest) {
    const rows = contest.methods.filter((row) => row.from_before);
    return contest.metrics
      .map((metric) => ({
        title: metric.title,
        axis: `difference from the predictions as they are, ${C.unitOf(metric)}`,
        unit: `difference, ${C.unitOf(metric)}`,
        factor: metric.factor,
        rows: rows
          .filter((row) => row.from_before[metric.name])
          .map(({ method, from_before: found }) =>
            C.differenceRow(method, found[metric.name], `${method}: ${found[metric.name].sentence}.`),
          ),
      }))
      .filter((group) => group.rows.length);
  }

  function contestSection(contest) {
    const groups = groupsOf(contest),
      said = contest.verdict.map((text) => h("p", { class: "sentence" }, text, "."));
    const forest = groups.length ? C.forestChart("contest", groups, `All methods. ${contest.verdict.join(". ")}.`) : null;
    const skipped = contest.skipped.map(({ method, reason }) => C.note(`${method} was skipped: ${reason}.`));
    const crossing = `Paired differences with ${view.levelText} intervals; one that crosses zero is within noise.`;
    const pictured = forest && [forest.element, C.note(crossing)];
    return C.section("contest", "Methods", "Which calibrator helps?", said, pictured, contestTable(contest), skipped);
  }

  Object.assign(C, { contestSection });
})();
