/* The summary: the verdict, and a card for each of the main numbers. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, percent, whole, temperatureText, view, note, titleLink } = C;

  function summaryPanel(subject) {
    const facts = `${whole(subject.samples)} samples · ${whole(subject.classes)} classes`;
    const { kind, headline, detail } = subject.verdict,
      place = C.atOne(subject);
    const cards = subject.cards
      .map((name) => subject.metrics.find((metric) => metric.name === name))
      .filter(Boolean)
      .map((metric) => card(subject, metric));
    const element = h(
      "div",
      { class: "summary", "data-panel": "summary" },
      view.several ? [h("h2", {}, C.breakable(subject.title)), h("p", { class: "meta" }, facts)] : null,
      h(
        "div",
        { class: `verdict verdict-${kind}`, "data-verdict": kind },
        h("p", { class: "headline" }, headline, " ", place.element),
        h("p", { class: "detail" }, detail),
      ),
      h(
        "div",
        { class: "cards" },
        cards.map((one) => one.element),
      ),
      subject.shown ? note(subject.shown) : null,
    );
    return { element, update: () => [place, ...cards].forEach((one) => one.update()) };
  }

  function card(subject, metric) {
    const now = h("p", { class: "card-now" });
    const range = C.intervalText(metric, metric.low, metric.high);
    const value = C.metricText(metric, metric.value);
    const element = h(
      "div",
      { class: "card", "data-card": metric.name },
      h("p", { class: "card-title" }, titleLink(metric)),
      h("p", { class: "card-value" }, value),
      h("p", { class: "card-range", title: range ? `${view.levelText} interval` : null }, range || " "),
      now,
    );
    return { element, update: () => now.replaceChildren(...cardNow(subject, metric)) };
  }

  /** What the controls make of a card's number; its value above stays the metric's own. */
  function cardNow(subject, metric) {
    const current = view.live(subject),
      rebinned = view.rebinned(subject);
    const at = `at T = ${temperatureText(current.temperature)}`;
    if (metric.name === "ece" && (current.moved || rebinned)) {
      return [h("strong", {}, percent(current.ece)), ` ${at}${rebinned ? `, ${view.binsText()}` : ""}`];
    }
    if (!current.moved) return [" "];
    if (metric.name === "nll") return [h("strong", {}, view.nllText(subject, current.nll)), ` ${at}`];
    return [metric.name === "accuracy" ? "the same at every T" : "shown at T = 1"];
  }

  Object.assign(C, { summaryPanel });
})();
