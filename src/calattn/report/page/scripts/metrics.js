/* The table of every metric. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, view, panel, note, titleLink } = C;

  function direction(metric) {
    const words = metric.better === "high" ? "higher is better" : "lower is better";
    return h(
      "span",
      { class: "direction", title: words },
      h("span", { "aria-hidden": "true" }, metric.better === "high" ? "↑" : "↓"),
      h("span", { class: "visually-hidden" }, words),
    );
  }

  function metricsPanel(subject) {
    const rows = subject.metrics.map((metric) =>
      h(
        "tr",
        { "data-metric": metric.name },
        h("th", { scope: "row" }, titleLink(metric), " ", direction(metric)),
        h("td", { class: "numeric" }, C.metricText(metric, metric.value)),
        h("td", { class: "numeric dim" }, C.intervalText(metric, metric.low, metric.high)),
      ),
    );
    const heads = ["Metric", "Value", `${view.levelText} interval`].map((text, k) =>
      h("th", { scope: "col", class: k > 0 ? "numeric" : null }, text),
    );
    const table = h(
      "table",
      { class: "data", "data-table": "metrics" },
      h("thead", {}, h("tr", {}, heads)),
      h("tbody", {}, rows),
    );
    const label = "Every number, at T = 1";
    const arrows = note("↑ higher is better, ↓ lower is better.");
    return {
      element: panel(
        "metrics",
        label,
        C.scroller(table, { label }),
        arrows,
      ),
    };
  }

  Object.assign(C, { metricsPanel });
})();
