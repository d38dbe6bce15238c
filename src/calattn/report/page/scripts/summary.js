/* The summary: the verdict and a card for each of the main numbers. Both follow the slider; T = 1 stays beneath. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, whole, temperatureText, view, note, titleLink } = C;

  function verdictBox(subject) {
    const { kind, headline, detail, hint } = subject.verdict;
    const line = h("p", { class: "headline", "data-live": "headline" }),
      beneath = h("p", { class: "detail", "data-live": "detail" });
    const element = h("div", {}, line, beneath);
    function update() {
      const now = view.live(subject);
      const found = now.moved ? now.verdict.kind : kind;
      element.className = `verdict verdict-${found}`;
      element.setAttribute("data-verdict", found);
      line.textContent = now.moved ? `At T = ${temperatureText(now.temperature)}, ${now.verdict.headline}` : headline;
      beneath.classList.toggle("ghost-text", now.moved);
      if (now.moved) beneath.textContent = `At T = 1, ${headline}. ${detail}`;
      else beneath.replaceChildren(detail, hint ? h("span", { class: "no-print" }, ` ${hint}`) : "");
    }
    return { element, update };
  }

  function summaryPanel(subject) {
    const facts = `${whole(subject.samples)} samples · ${whole(subject.classes)} classes`;
    const box = verdictBox(subject);
    const cards = subject.cards
      .map((name) => subject.metrics.find((metric) => metric.name === name))
      .filter(Boolean)
      .map((metric) => card(subject, metric));
    const element = h(
      "div",
      { class: "summary", "data-panel": "summary" },
      view.several ? [h("h2", {}, C.breakable(subject.title)), h("p", { class: "meta" }, facts)] : null,
      box.element,
      h(
        "div",
        { class: "cards" },
        cards.map((one) => one.element),
      ),
      subject.shown ? note(subject.shown) : null,
    );
    return { element, update: () => [box, ...cards].forEach((one) => one.update()) };
  }

  /** A number as the controls make it; where they have moved, what it is at T = 1 stands beneath. */
  function card(subject, metric) {
    const value = h("p", { class: "card-value", "data-live": `card-${metric.name}` }),
      range = h("p", { class: "card-range" }),
      ghost = h("p", { class: "card-now" });
    const interval = C.intervalText(metric, metric.low, metric.high),
      own = C.metricText(metric, metric.value);
    const title = h("p", { class: "card-title" }, titleLink(metric));
    const element = h("div", { class: "card", "data-card": metric.name }, title, value, range, ghost);
    function update() {
      const now = view.live(subject),
        rebinned = metric.name === "ece" && view.rebinned(subject);
      const live = { ece: now.ece, nll: now.nll, brier: now.brier, accuracy: metric.value }[metric.name];
      const fixed = metric.name === "accuracy" || !(now.moved || rebinned);
      const text = metric.name === "nll" && C.missing(live) ? "∞" : C.metricText(metric, live);
      value.textContent = fixed ? own : text;
      value.setAttribute("data-value", String(fixed ? metric.value : live));
      range.textContent = fixed ? interval || " " : rebinned ? view.binsText() : `at T = ${temperatureText(now.temperature)}`;
      ghost.textContent = fixed ? (now.moved ? "the same at every T" : " ") : `at T = 1: ${own} ${interval}`;
    }
    return { element, update };
  }

  Object.assign(C, { summaryPanel });
})();
