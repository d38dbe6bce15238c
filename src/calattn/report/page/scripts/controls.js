/* The controls that drive every panel: temperature, bins and binning. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, temperatureText, view } = C;

  function choice(label, name, options, value, change) {
    const select = h(
      "select",
      { "data-control": name, change: () => change(select.value) },
      options.map(([key, text]) => h("option", { value: key }, text)),
    );
    const element = h("label", { class: "field" }, h("span", {}, label), select);
    return { element, update: () => (select.value = String(value())) };
  }

  const bestOnes = () => [...view.profiles.values()].map((profile) => profile.best).filter(Boolean);

  function starButtons() {
    const stars = bestOnes();
    const button = (by, text) => h("button", { type: "button", "data-own": by, click: () => view.setOwn(by) }, text);
    const nll = () => (view.several ? "each at its own T* (NLL)" : `T* (NLL, ${stars[0].fitted_on})`);
    const ece = button("ECE", view.several ? "each at its lowest ECE" : "lowest ECE");
    return stars.length ? [button("NLL", nll()), ece] : [ece];
  }

  function sliderMarks(grid) {
    const mark = (value, kind) => {
      const one = h("span", { class: `slider-mark ${kind}` }),
        share = grid.indexOf(value) / (grid.length - 1);
      one.style.left = `calc(8px + (100% - 16px) * ${share.toFixed(4)})`; // 16px: the thumb's width
      return one;
    };
    const stars = bestOnes().map((best) => mark(best.value, "star-mark"));
    return h("span", { class: "slider-marks", "aria-hidden": "true" }, mark(1, "one-mark"), stars);
  }

  /** One slider for all: the temperatures of every subject's grid. */
  function temperatureSlider() {
    const grid = [...new Set([...view.profiles.values()].flatMap((profile) => profile.grid))].sort((a, b) => a - b);
    const input = h("input", {
      type: "range",
      id: "temperature",
      min: 0,
      max: grid.length - 1,
      step: 1,
      "data-control": "temperature",
      input: () => view.setTemperature(grid[Number(input.value)]),
    });
    const readout = h("output", { for: "temperature", class: "readout-temperature", id: "temperature-readout" });
    const label = h("label", { for: "temperature" }, "Temperature");
    const frame = h("span", { class: "slider-frame" }, input, sliderMarks(grid));
    function update() {
      const { temperature } = view.live(view.subjects[0]),
        text = temperatureText(temperature);
      input.value = String(grid.indexOf(temperature));
      const own = view.own && view.several;
      readout.textContent = own ? "own T" : text;
      input.setAttribute("aria-valuetext", own ? "each at its own temperature" : `temperature ${text}`);
    }
    return { element: h("div", { class: "temperature-field" }, label, frame, readout), update };
  }

  const isOn = ({ own }) => (own ? view.own === own : !view.own && !view.live(view.subjects[0]).moved);

  function controlBar() {
    const slider = temperatureSlider();
    const one = h("button", { type: "button", "data-reset": "1", click: () => view.setTemperature(1) }, "T = 1");
    const buttons = [one, ...starButtons()];
    const bins = C.BINS.map((count) => [count, String(count)]);
    const binnings = [
      ["width", "equal width"],
      ["count", "equal count"],
    ];
    const choices = [
      choice("Bins", "bins", bins, () => view.bins, (value) => view.setBins(Number(value))),
      choice("Binning", "binning", binnings, () => view.binning, (value) => view.setBinning(value)),
    ];
    const element = h(
      "div",
      { class: "controls no-print", role: "group", "aria-label": "Temperature and bins" },
      slider.element,
      h("div", { class: "buttons" }, buttons),
      choices.map((one) => one.element),
    );
    function update() {
      for (const one of [slider, ...choices]) one.update();
      for (const button of buttons) button.setAttribute("aria-pressed", String(isOn(button.dataset)));
    }
    return { element, update };
  }

  Object.assign(C, { controlBar });
})();
