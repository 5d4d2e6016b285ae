/* The calculator's form and results. Replaces the content of the element #six_numbers, which readers see where no
script runs. Nothing that is pasted leaves the page. */
(function () {
  "use strict";

  const { h, say } = stepPlayer;
  const { readConfig, layersOf, summed, onGpu, grouped } = sixNumbers;
  const GIB = 2 ** 30;
  const OWN = "your own config.json";
  const FIRST = Object.keys(sixNumbersConfigs)[0];
  const FIRST_WEIGHTS_GB = 16.06; // 2 · 8,030,261,248 bytes
  const GPUS = {
    // GB/s as the vendors publish them, MiB as nvidia-smi prints them
    "A100, 40 GB": [1555, 40960],
    "H100 SXM, 80 GB": [3350, 81559],
    "H200": [4800, 143771],
    "B200": [7700, 183359],
    "RTX 4090": [1008, 24564],
  };
  const FIRST_GPU = "H100 SXM, 80 GB";
  const NUMBERS = {
    tokens: { name: "tokens of each user", value: 131072, least: 1, step: 1 },
    weights: { name: "weights on the GPU, GB", value: FIRST_WEIGHTS_GB, least: 0, step: "any" },
    bandwidth: { name: "bandwidth, GB/s", value: GPUS[FIRST_GPU][0], least: 1, step: "any" },
    memory: { name: "memory, MiB", value: GPUS[FIRST_GPU][1], least: 1, step: "any" },
  };
  const RESULTS = {
    token: "a further token adds",
    cache: "a user's cache",
    read: "a step reads of it",
    cacheMs: "which takes at least",
    users: "users that fit",
    step: "a step with all of them",
  };

  function start() {
    const hook = document.getElementById("six_numbers");
    if (!hook) return;
    const form = makeForm(show);
    const results = makeResults();
    hook.replaceChildren(form.element, results.element);
    hook.classList.add("pl", "six");
    show();

    function show() {
      try {
        results.show(computed(form.values()));
      } catch (error) {
        results.refuse(error.message);
      }
    }
  }

  /* All results of the form's values. Throws an Error with one line for what is refused. */
  function computed({ text, bits, tokens, weights, bandwidth, memory }) {
    for (const [key, value] of Object.entries({ tokens, weights, bandwidth, memory })) {
      const { name, least } = NUMBERS[key];
      if (!(value >= least) || (key === "tokens" && !Number.isInteger(value))) throw new Error(`${name}: a number of at least ${least} is needed`);
    }
    const layers = layersOf(readConfig(text));
    const bytes = summed(layers, tokens, bits);
    const gpu = { memory: memory * 2 ** 20, weights: weights * 1e9, bandwidth: bandwidth * 1e9 };
    const { fit, cacheMs } = onGpu(bytes, { ...gpu, users: 1 });
    const { stepMs } = onGpu(bytes, { ...gpu, users: fit || 0 });
    return { layers, bytes, fit, cacheMs, stepMs, tokens, bits, weights };
  }

  function makeForm(change) {
    const model = choice("model", [...Object.keys(sixNumbersConfigs), OWN], FIRST, () => {
      if (model.select.value !== OWN) {
        config.value = printed(model.select.value);
        numbers.weights.value = model.select.value === FIRST ? FIRST_WEIGHTS_GB : 0;
      }
      change();
    });
    const config = h("textarea", {
      rows: 7, spellcheck: "false", autocapitalize: "off", "aria-label": "config.json",
      oninput: () => {
        model.select.value = OWN;
        change();
      },
    });
    config.value = printed(FIRST);
    const bits = choice("bits of a cached number", ["16", "8", "4"], "16", change);
    const gpu = choice("GPU", Object.keys(GPUS), FIRST_GPU, () => {
      [numbers.bandwidth.value, numbers.memory.value] = GPUS[gpu.select.value];
      change();
    });
    const numbers = {};
    const labels = {};
    for (const [key, { name, value, least, step }] of Object.entries(NUMBERS)) {
      numbers[key] = h("input", { type: "number", value, min: least, step, oninput: change, "data-in": key });
      labels[key] = h("label", {}, name, numbers[key]);
    }
    const element = h(
      "div",
      { class: "six-form", role: "group", "aria-label": "Model and GPU" },
      model.label,
      h("label", { class: "six-config" }, "its config.json: paste another over it", config),
      h("div", { class: "six-fields" }, labels.tokens, bits.label, labels.weights, gpu.label, labels.bandwidth, labels.memory),
    );
    return {
      element,
      values: () => ({
        text: config.value,
        bits: Number(bits.select.value),
        ...Object.fromEntries(Object.entries(numbers).map(([key, input]) => [key, input.value === "" ? NaN : Number(input.value)])),
      }),
    };
  }

  function choice(name, options, chosen, change) {
    const select = h("select", { onchange: change, "data-in": name }, options.map((each) => h("option", { value: each }, each)));
    select.value = chosen;
    return { select, label: h("label", {}, name, select) };
  }

  function makeResults() {
    const outputs = Object.fromEntries(Object.keys(RESULTS).map((key) => [key, h("dd", { "data-out": key })]));
    const numbers = h("dl", { class: "six-numbers simple" }, Object.entries(RESULTS).map(([key, name]) => h("div", {}, h("dt", {}, name), outputs[key])));
    const refused = h("p", { class: "six-refused", role: "alert", "data-out": "refused" });
    const body = h("tbody", {});
    const head = ["layers", "kind", "cache, GiB", "a step reads, GiB"].map((name) => h("th", { scope: "col" }, name));
    const kinds = h("table", { class: "six-kinds" }, h("thead", {}, h("tr", {}, head)), body);
    const element = h("div", { "aria-live": "polite" }, refused, numbers, kinds);
    const hide = (are) => [numbers, kinds].forEach((each) => (each.hidden = are));

    return {
      element,
      refuse(message) {
        say(refused, `Refused: ${message}.`);
        hide(true);
      },
      show(result) {
        say(refused, "");
        hide(false);
        for (const [key, words] of Object.entries(inWords(result))) say(outputs[key], words);
        body.replaceChildren(...rows(result));
      },
    };
  }

  function inWords({ bytes, fit, cacheMs, stepMs, weights }) {
    const rate = weights ? `${grouped(Math.round((1000 * fit) / stepMs))} tokens/s in all` : "without weights";
    return {
      token: `${grouped(bytes.furtherToken)} bytes`,
      cache: `${gib(bytes.cache)} GiB`,
      read: `${gib(bytes.read)} GiB`,
      cacheMs: `${rounded(cacheMs)} ms`,
      users: fit === null ? "any number: nothing is cached" : grouped(fit),
      step: fit ? `${rounded(stepMs)} ms, ${rate}` : "–",
    };
  }

  /* A row for each kind of layer, in the order of their first layers. */
  function rows({ layers, tokens, bits }) {
    const kinds = new Map();
    for (const layer of layers) kinds.set(JSON.stringify(layer), [...(kinds.get(JSON.stringify(layer)) || []), layer]);
    return [...kinds.values()].map((same) => {
      const { cache, read } = summed(same, tokens, bits);
      return h("tr", {}, [same.length, described(same[0]), gib(cache), gib(read)].map((value) => h("td", {}, String(value))));
    });
  }

  function described({ kind, reach, ratio, recent, chosen }) {
    const parts = [kind];
    if (reach) parts.push(`the last ${grouped(reach)} tokens`);
    if (ratio > 1) parts.push(`${ratio} tokens an entry, the last ${grouped(recent)} tokens whole`);
    if (chosen) parts.push(`${grouped(chosen)} ${ratio > 1 ? "entries" : "tokens"} read`);
    return parts.join(", ");
  }

  function printed(name) {
    return JSON.stringify(sixNumbersConfigs[name], null, 1).replace(/\[[^\]]*\]/g, (list) => list.replace(/\s+/g, " "));
  }

  function gib(bytes) {
    return (bytes / GIB).toFixed(3);
  }

  function rounded(ms) {
    if (ms >= 100) return grouped(Math.round(ms));
    return ms.toFixed(ms < 10 ? 2 : 1);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
