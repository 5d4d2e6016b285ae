/* What each layer of a model keeps in its cache, from its config.json: labkit/bench/model_config.py, rule by rule.

The tables are that module's own (rules.js, by `lab build`), and tests/docs/test_six_numbers.py compares the results. */
(function () {
  "use strict";

  const { NAMES, KINDS, CODES, PERIODS, LETTERS, LIMITS, PATTERNS, HIDDEN, WORDS, TEXT_PARTS, MAX_LAYERS } = sixNumbersRules;
  const READ = new Set(sixNumbersRules.READ);
  const HARMLESS = sixNumbersRules.HARMLESS.map((pattern) => new RegExp(`^${pattern.replace(/[.+^${}()|[\]\\?]/g, "\\$&").replace(/\*/g, ".*")}$`));

  /* The part of a config.json that describes the text model's layers. Throws an Error unless there is one. */
  function readConfig(text) {
    let config;
    try {
      config = JSON.parse(text);
    } catch (error) {
      throw new Error(`config.json is not JSON: ${error.message}`);
    }
    if (!isObject(config)) throw new Error("config.json is not a model's configuration: it holds no JSON object");
    let part = TEXT_PARTS.find((name) => isObject(config[name]));
    while (part) {
      config = config[part];
      part = TEXT_PARTS.find((name) => isObject(config[name]));
    }
    if (given(config, "layers").value === null && listed(config) === null) {
      throw new Error("config.json is not a language model's configuration: it has no num_hidden_layers");
    }
    return config;
  }

  /* What each layer keeps, from the first to the last. Throws an Error for what is missing, unknown or not read. */
  function layersOf(config) {
    const kinds = kindsOf(config);
    const unknown = new Map();
    for (const kind of kinds.filter((each) => !has(KINDS, each))) unknown.set(kind, (unknown.get(kind) || 0) + 1);
    if (unknown.size) {
      const names = [...unknown].map(([kind, count]) => `${shown(kind)} (${count} layers)`).join(", ");
      throw new Error(`unknown kinds of layers: ${names}; known: ${Object.keys(KINDS).join(", ")}`);
    }
    const overrides = perLayer(config);
    for (const each of [config, ...Object.values(overrides)]) {
      const unread = unreadKeys(each);
      if (unread.length) throw new Error(`${unread[0]} may change the cache, and it is not read here`);
    }
    const needed = has(HIDDEN, modelType(config)) ? HIDDEN[modelType(config)] : null;
    if (needed && !truthy(config[needed]) && !Object.keys(overrides).length) {
      throw new Error(`${needed} is missing: not all layers of ${modelType(config)} have the same sizes`);
    }
    const single = kinds.some((kind) => KINDS[kind].includes("compressed")); // there a key is its own value
    const layers = kinds.map((kind, at) => {
      const own = { ...ownConfig(config, at, kinds.length, KINDS[kind]), ...overrides[at] };
      return makeLayer(own, kind, single);
    });
    return withoutSharing(config, layers);
  }

  /* The kind of each layer, by its name in the config, or by what the config says of all layers. */
  function kindsOf(config) {
    const named = listed(config);
    if (named !== null && given(config, "layers").value === null) return named;
    const count = whole(config, "layers");
    if (count > MAX_LAYERS) throw new Error(`num_hidden_layers is ${count}: more than ${grouped(MAX_LAYERS)} are not read`);
    const kinds = named === null ? followed(config, count) : named;
    if (kinds.length !== count) throw new Error(`it does not list one kind for each of its ${count} layers`);
    return kinds;
  }

  /* The kinds that the config lists, in any of the ways that are in use; null if it lists none. */
  function listed(config) {
    const key = ["layer_types", "layers_block_type"].find((name) => isGiven(config[name]));
    if (key) return list(key, config[key]).map(text);
    if (truthy(config.hybrid_override_pattern)) {
      return [...text(config.hybrid_override_pattern)].map((letter) => (has(LETTERS, letter) ? LETTERS[letter] : letter));
    }
    if (truthy(config.linear_attn_config)) return fromNumbers(config);
    for (const [name, codes] of Object.entries(CODES)) {
      if (!truthy(config[name]) || (name === "no_rope_layers" && given(config, "chunk").value === null)) continue;
      const kinds = list(name, config[name]).map(text).map((code) => (has(codes, code) ? codes[code] : `${name} ${code}`));
      return name === "compress_ratios" ? kinds.slice(0, whole(config, "layers")) : kinds;
    }
    for (const [name, other] of [["full_attn_idxs", "conv"], ["attn_layer_indices", "mamba"]]) {
      if (!truthy(config[name])) continue;
      const full = list(name, config[name]);
      return Array.from({ length: whole(config, "layers") }, (_, at) => (full.includes(at) ? "full_attention" : other));
    }
    return null;
  }

  /* Kimi's lists of layers, counted from 1. */
  function fromNumbers(config) {
    const linear = object("linear_attn_config", config.linear_attn_config);
    const kinds = new Map();
    for (const [key, kind] of [["full_attn_layers", "full_attention"], ["kda_layers", "linear_attention"]]) {
      for (const layer of list(`linear_attn_config.${key}`, linear[key])) kinds.set(layer, kind);
    }
    const numbers = Array.from({ length: whole(config, "layers") }, (_, at) => at + 1);
    return numbers.filter((layer) => kinds.has(layer)).map((layer) => kinds.get(layer));
  }

  /* The kinds of a config that lists none: all full, or what a period or its model's pattern says. */
  function followed(config, count) {
    const limits = Object.entries(LIMITS).filter(([meaning]) => given(config, meaning).value !== null)
      .filter(([meaning]) => meaning !== "window" || config.use_sliding_window !== false);
    const letters = new Set(limits.map(([, letter]) => letter));
    const only = (letter) => letters.size === 1 && letters.has(letter);
    const times = (letterOf) => Array.from({ length: count }, (_, at) => LETTERS[letterOf(at)]);
    let pattern = has(PATTERNS, modelType(config)) ? PATTERNS[modelType(config)] : "";
    if (!limits.length) return times(() => "F");
    if (only("I")) return times(() => "I");
    if (only("W") && isGiven(config.max_window_layers)) {
      const full = number("max_window_layers", config.max_window_layers, 0);
      return times((at) => (at < full ? "F" : "W"));
    }
    const period = PERIODS.find((key) => truthy(config[key]));
    if (period && (only("W") || only("C"))) pattern = pattern || `${[...letters][0]}F`;
    const expected = new Set(pattern.replaceAll("H", "L").replaceAll("F", ""));
    if (letters.size !== expected.size || [...letters].some((letter) => !expected.has(letter))) {
      const { key } = given(config, limits[0][0]);
      throw new Error(`it lists no layer_types, and no rule is known for the model_type ${shown(modelType(config))}: which layers have ${key} is not said`);
    }
    if (period && pattern.includes("F")) {
      const every = number(period, config[period]);
      const offset = number("attn_layer_offset", config.attn_layer_offset === undefined ? every - 1 : config.attn_layer_offset, 0);
      return times((at) => (at % every === offset ? "F" : pattern[0]));
    }
    return times((at) => pattern[at % pattern.length]);
  }

  /* One layer's config: its entry in lists by layer, and sizes of windows alone or of layers that reach over all. */
  function ownConfig(config, layer, count, kind) {
    const own = {};
    for (const [key, value] of Object.entries(config)) own[key] = Array.isArray(value) && value.length === count ? value[layer] : value;
    if (kind.includes("window")) {
      for (const [key, value] of Object.entries(own)) if (key.startsWith("swa_")) own[key.slice(4)] = value;
    }
    if (kind.includes("all") && truthy(own.global_head_dim)) own.head_dim = own.global_head_dim;
    const sameForBoth = own.attention_k_eq_v === undefined || truthy(own.attention_k_eq_v);
    if (kind.includes("all") && truthy(own.num_global_key_value_heads) && sameForBoth) own.num_key_value_heads = own.num_global_key_value_heads;
    if (truthy(own.linear_attn_config)) {
      const linear = own.linear_attn_config;
      own.linear_num_heads = linear.num_heads;
      own.linear_head_dim = linear.head_dim;
      own.linear_conv_kernel_dim = linear.short_conv_kernel_size;
    }
    return own;
  }

  /* The sizes by layer that transformers writes, with numbers of layers as keys: "5", or "05" of ten or more. */
  function perLayer(config) {
    const layers = object("per_layer_config", truthy(config.per_layer_config) ? config.per_layer_config : {});
    const wrong = Object.keys(layers).find((key) => !/^\d+$/.test(key));
    if (wrong !== undefined) throw new Error(`per_layer_config has the key ${shown(wrong)}: it must be the number of a layer`);
    return Object.fromEntries(Object.entries(layers).map(([key, own]) => [Number(key), object("per_layer_config", own)]));
  }

  /* The keys, those of nested objects too, that may change the cache and that nothing here reads. */
  function unreadKeys(config) {
    const keys = Object.entries(config).filter(([key]) => !isKnown(key));
    for (const [key, value] of Object.entries(config).filter(([, each]) => isObject(each))) {
      for (const [name, inner] of Object.entries(value)) {
        if (!isKnown(key, name, `${key}.${name}`)) keys.push([`${key}.${name}`, inner]);
      }
    }
    const mayChange = (key) => WORDS.some((word) => key.slice(key.lastIndexOf(".") + 1).includes(word));
    return keys.filter(([key, value]) => truthy(value) && mayChange(key)).map(([key]) => key);
  }

  function isKnown(...keys) {
    return keys.some((key) => READ.has(key.replace(/^swa_/, "")) || HARMLESS.some((pattern) => pattern.test(key)));
  }

  /* What a token keeps × how far the layer reaches + what is fixed. */
  function makeLayer(config, name, single) {
    const [reach, besides = ""] = KINDS[name].split(" + ");
    const sizes = reach === "state" || besides === "state" ? stateOf(config) : null;
    if (reach === "state" || reach === "nothing") return layer(sizes ? "linear state" : "no cache", sizes || {});
    const own = { ...sizes, numbers: numbersOf(config, single) };
    const isChosen = reach === "chosen" || besides === "chosen";
    if (reach === "window" || reach === "chunk") own.reach = whole(config, reach);
    if (isChosen) Object.assign(own, { index: whole(config, "index"), chosen: whole(config, "chosen") });
    if (reach === "compressed") {
      const ratios = Object.fromEntries(Object.entries(CODES.compress_ratios).map(([ratio, kind]) => [kind, Number(ratio)]));
      Object.assign(ratios, object("compress_rates", truthy(config.compress_rates) ? config.compress_rates : {}));
      Object.assign(own, { ratio: number(`compress_rates.${name}`, ratios[name]), recent: whole(config, "window") });
    }
    // a group is mixed with the one before, whose entries stay, and in float32 their weights
    if (besides === "chosen") own.conv = own.state = own.ratio * (own.numbers + own.index);
    let kind = reach === "all" || reach === "chosen" ? "full" : reach;
    if (given(config, "latent").value !== null) kind = kind === "full" ? "MLA" : `${kind}, MLA`;
    return layer(kind + (isChosen ? " + indexer" : "") + (besides === "state" ? " + linear state" : ""), own);
  }

  /* Numbers that a token keeps: a latent vector, or keys and values, or one vector for both. */
  function numbersOf(config, single) {
    if (given(config, "latent").value !== null) return whole(config, "latent") + whole(config, "positions", 0);
    const heads = whole(config, "heads");
    let keyHeads = whole(config, "key heads", 1, heads);
    if (truthy(config.multi_query) && !truthy(config.new_decoder_architecture)) keyHeads = 1;
    const width = whole(config, "head width", 1, 0) || Math.floor(whole(config, "width") / heads);
    return keyHeads * (single ? width : width + whole(config, "value width", 1, width));
  }

  /* conv, the inputs of a short convolution, and state, a recurrent state, of a layer that has them. */
  function stateOf(config) {
    if (given(config, "convolution alone").value !== null) return { conv: whole(config, "width") * whole(config, "convolution alone") };
    if (given(config, "linear value heads").value !== null) {
      const width = whole(config, "linear key width");
      const keys = whole(config, "linear key heads") * width;
      const values = whole(config, "linear value heads") * whole(config, "linear value width");
      return { conv: (2 * keys + values) * whole(config, "convolution"), state: values * width };
    }
    if (given(config, "state").value === null) throw new Error("it has linear layers of a kind whose sizes are not known here");
    const [size, kernel] = [whole(config, "state"), whole(config, "convolution")];
    if (given(config, "mamba groups").value !== null) {
      const channels = whole(config, "mamba heads") * whole(config, "mamba head width");
      return { conv: (channels + 2 * whole(config, "mamba groups") * size) * kernel, state: channels * size };
    }
    let channels = whole(config, "expansion") * whole(config, "width");
    if ("expand" in config && truthy(config.intermediate_size)) channels = number("intermediate_size", config.intermediate_size);
    return { conv: channels * kernel, state: channels * size };
  }

  /* The layers, those that read another layer's cache or index without what they share. */
  function withoutSharing(config, layers) {
    const shared = number("num_kv_shared_layers", truthy(config.num_kv_shared_layers) ? config.num_kv_shared_layers : 0, 0);
    if (shared > layers.length) throw new Error(`num_kv_shared_layers is ${shared}, of ${layers.length} layers`);
    const own = layers.map((each, at) => (at < layers.length - shared ? each : layer("shared", {})));
    const indexers = list("indexer_types", truthy(config.indexer_types) ? config.indexer_types : []).slice(0, own.length);
    return own.map((each, at) => (indexers[at] === "shared" ? layer("MLA, shared index", { numbers: each.numbers, chosen: each.chosen }) : each));
  }

  function layer(kind, sizes) {
    return { kind, numbers: 0, index: 0, reach: null, chosen: null, conv: 0, state: 0, ratio: 1, recent: 0, ...sizes };
  }

  function modelType(config) {
    return text(isGiven(config.model_type) ? config.model_type : null).replace(/_text$/, "");
  }

  /* The key of that meaning, and its value; the first name and null if the config has none. */
  function given(config, meaning) {
    const key = NAMES[meaning].find((name) => isGiven(config[name]));
    return key === undefined ? { key: NAMES[meaning][0], value: null } : { key, value: config[key] };
  }

  function whole(config, meaning, least = 1, otherwise = null) {
    const { key, value } = given(config, meaning);
    return value === null && otherwise !== null ? otherwise : number(key, value, least);
  }

  function number(name, value, least = 1) {
    if (Number.isInteger(value) && value >= least) return value;
    throw new Error(`${name} ${isGiven(value) ? `is ${shown(value)}` : "is missing"}: it must be a whole number of at least ${least}`);
  }

  function list(name, value) {
    if (Array.isArray(value)) return value;
    throw new Error(`${name} is no list of layers`);
  }

  function object(name, value) {
    if (isObject(value)) return value;
    throw new Error(`${name} is no JSON object`);
  }

  function isObject(value) {
    return typeof value === "object" && value !== null && !Array.isArray(value);
  }

  function isGiven(value) {
    return value !== null && value !== undefined;
  }

  /* As Python has it: an empty list or object counts as nothing. */
  function truthy(value) {
    if (Array.isArray(value)) return value.length > 0;
    return isObject(value) ? Object.keys(value).length > 0 : Boolean(value);
  }

  function text(value) {
    if (value === null) return "None";
    return typeof value === "string" ? value : JSON.stringify(value);
  }

  function shown(value) {
    return typeof value === "string" ? `'${value}'` : JSON.stringify(value);
  }

  /* 10,000 for 10000. */
  function grouped(value) {
    return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
  }

  function has(table, key) {
    return Object.hasOwn(table, key);
  }

  globalThis.sixNumbers = { readConfig, layersOf, grouped };
})();
