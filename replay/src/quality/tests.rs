//! The forward pass and the attention of a chat, beside plain ones in f64.

use super::chat::Chat;
use super::*;
use crate::quality::tasks::Random;
use crate::transformer::tests::Written;
use crate::transformer::{Gemma, Projected, Shape, loss};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// Weights by name, with their shapes. Norms have one dimension.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn number(random: &mut Random) -> f32 {
    (random.below(2001) as f32 - 1000.0) / 1000.0
}

fn tensors(layers: usize, tied: bool) -> Tensors {
    let mut random = Random(5);
    let (hidden, inner, query, kv) = (20, 26, 24, 12);
    let mut shapes = vec![("token_embd".to_string(), vec![53, hidden]), ("output_norm".into(), vec![hidden])];
    if !tied {
        shapes.push(("output".into(), vec![53, hidden]));
    }
    for layer in 0..layers {
        for (name, shape) in [
            ("attn_norm", vec![hidden]),
            ("ffn_norm", vec![hidden]),
            ("attn_q", vec![query, hidden]),
            ("attn_k", vec![kv, hidden]),
            ("attn_v", vec![kv, hidden]),
            ("attn_output", vec![hidden, query]),
            ("ffn_gate", vec![inner, hidden]),
            ("ffn_up", vec![inner, hidden]),
            ("ffn_down", vec![hidden, inner]),
        ] {
            shapes.push((format!("blk.{layer}.{name}"), shape));
        }
    }
    let mut filled = |shape: Vec<usize>| {
        let values = (0..shape.iter().product()).map(|_| number(&mut random)).collect();
        (shape, values)
    };
    shapes.into_iter().map(|(name, shape)| (format!("{name}.weight"), filled(shape))).collect()
}

/// The tensors with those that a Gemma 3 has besides.
fn gemma_tensors(layers: usize) -> Tensors {
    let (mut tensors, mut random) = (tensors(layers, true), Random(6));
    for layer in 0..layers {
        for (name, len) in [("attn_q_norm", 6), ("attn_k_norm", 6), ("post_attention_norm", 20), ("post_ffw_norm", 20)]
        {
            let values = (0..len).map(|_| number(&mut random)).collect();
            tensors.insert(format!("blk.{layer}.{name}.weight"), (vec![len], values));
        }
    }
    tensors
}

/// The model of a GGUF file that has these tensors.
fn model(name: &str, architecture: &str, tensors: &Tensors) -> Model {
    let tensors = tensors.iter().map(|(name, tensor)| in_gguf(architecture, name, tensor));
    Written::new(architecture, tensors).open(name).unwrap()
}

/// The oracle: the losses of tokens 1 and on, by the definition of the model.
fn plain_losses(tensors: &Tensors, gemma: Option<&Gemma>, tokens: &[u32]) -> Vec<f64> {
    let weight = |name: &str| &tensors[&format!("{name}.weight")].1;
    let map = |name: &str, row: &[f64]| -> Vec<f64> {
        let bias = tensors.get(&format!("{name}.bias")).map(|(_, bias)| bias);
        let product = |(at, w): (usize, &[f32])| {
            let product: f64 = w.iter().zip(row).map(|(w, x)| f64::from(*w) * x).sum();
            product + bias.map_or(0.0, |bias| f64::from(bias[at]))
        };
        weight(name).chunks(row.len()).enumerate().map(product).collect()
    };
    let norm = |name: &str, row: &[f64]| -> Vec<f64> {
        let square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        row.iter().zip(weight(name)).map(|(x, w)| x / (square + 1e-5).sqrt() * f64::from(*w)).collect()
    };
    // A norm that a Gemma 3 alone has.
    let gemma_norm = |name: &str, row: Vec<f64>| if gemma.is_some() { norm(name, &row) } else { row };
    let rotated = |row: Vec<f64>, position: f64, theta: f64| -> Vec<f64> {
        let turn = |at: usize| {
            let (head, dim) = (at / 6 * 6, at % 6);
            let angle = position / theta.powf((dim % 3) as f64 / 3.0);
            let other = if dim < 3 { -row[head + dim + 3] } else { row[head + dim - 3] };
            row[at] * angle.cos() + other * angle.sin()
        };
        (0..row.len()).map(turn).collect()
    };
    let embedding = weight("token_embd");
    let scale = if gemma.is_some() { 20f64.sqrt() } else { 1.0 };
    let embedded =
        |token: &u32| embedding[*token as usize * 20..][..20].iter().map(|x| scale * f64::from(*x)).collect();
    let mut states: Vec<Vec<f64>> = tokens.iter().map(embedded).collect();
    for layer in (0..).take_while(|layer| tensors.contains_key(&format!("blk.{layer}.attn_q.weight"))) {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (window, theta, stretch) = match gemma {
            Some(gemma) if layer % gemma.period == gemma.period - 1 => (usize::MAX, 500.0, gemma.stretch),
            Some(gemma) => (gemma.window as usize, gemma.theta, 1.0),
            None => (usize::MAX, 500.0, 1.0),
        };
        let rows: Vec<_> = states.iter().map(|state| norm(&name("attn_norm"), state)).collect();
        let project = |part: &str| {
            let name = name(part);
            rows.iter().map(move |row| map(&name, row)).enumerate()
        };
        let turned = |part: &str| -> Vec<Vec<f64>> {
            let of_heads = |row: Vec<f64>| {
                row.chunks(6).flat_map(|head| gemma_norm(&name(&format!("{part}_norm")), head.to_vec())).collect()
            };
            project(part).map(|(at, row)| rotated(of_heads(row), at as f64 / stretch, theta)).collect()
        };
        let (query, key) = (turned("attn_q"), turned("attn_k"));
        let value: Vec<_> = project("attn_v").map(|(_, row)| row).collect();
        for (at, state) in states.iter_mut().enumerate() {
            let rows: Vec<_> = key.iter().zip(&value).take(at + 1).skip((at + 1).saturating_sub(window)).collect();
            let attended: Vec<f64> = (0..4).flat_map(|head| attention(&query[at], &rows, head, (6, 2))).collect();
            let output = gemma_norm(&name("post_attention_norm"), map(&name("attn_output"), &attended));
            state.iter_mut().zip(output).for_each(|(x, more)| *x += more);
            let normed = norm(&name("ffn_norm"), state);
            let (gate, up) = (map(&name("ffn_gate"), &normed), map(&name("ffn_up"), &normed));
            let silu = |x: f64| x / (1.0 + (-x).exp());
            let gelu =
                |x: f64| x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
            let activated = |x: f64| if gemma.is_some() { gelu(x) } else { silu(x) };
            let gated: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| activated(*gate) * up).collect();
            let output = gemma_norm(&name("post_ffw_norm"), map(&name("ffn_down"), &gated));
            state.iter_mut().zip(output).for_each(|(x, more)| *x += more);
        }
    }
    let head = if tensors.contains_key("output.weight") { "output" } else { "token_embd" };
    let losses = states.iter().zip(&tokens[1..]).map(|(state, next)| {
        let logits = map(head, &norm("output_norm", state));
        logits.iter().map(|x| x.exp()).sum::<f64>().ln() - logits[*next as usize]
    });
    losses.collect()
}

/// The output of one query head over rows of keys and values, by definition. `group` query heads share a KV head.
fn attention(query: &[f64], rows: &[(&Vec<f64>, &Vec<f64>)], head: usize, (dims, group): (usize, usize)) -> Vec<f64> {
    let (query, kv) = (&query[head * dims..][..dims], head / group * dims);
    let logit = |key: &[f64]| query.iter().zip(&key[kv..]).map(|(q, k)| q * k).sum::<f64>() / (dims as f64).sqrt();
    let weights: Vec<f64> = rows.iter().map(|(key, _)| logit(key).exp()).collect();
    let sum: f64 = weights.iter().sum();
    (0..dims).map(|dim| weights.iter().zip(rows).map(|(w, (_, value))| w / sum * value[kv + dim]).sum()).collect()
}

/// Whether a model has the losses of the plain pass: a prompt, some more tokens in one step, single ones.
fn assert_plain(model: &Model, tensors: &Tensors, gemma: Option<&Gemma>) {
    let mut random = Random(3);
    let tokens: Vec<u32> = (0..150).map(|_| random.below(53) as u32).collect();
    let mut chat = Chat::new(model.shape(), "{}", 150, model.shape().layers).unwrap();
    let mut losses = Vec::new();
    let steps = [0..130, 130..147].into_iter().chain((147..149).map(|at| at..at + 1));
    for step in steps {
        let positions: Vec<usize> = step.clone().collect();
        let attend = |layer: usize, rows: &Projected<'_>, out: &mut [f32]| chat.step(layer, rows, out);
        let states = model.forward(&tokens[step.clone()], &positions, attend).unwrap();
        model.predict(&states, |row, logits| losses.push(loss(logits, tokens[step.start + 1 + row])));
    }
    let expected = plain_losses(tensors, gemma, &tokens);
    assert_eq!(losses.len(), expected.len());
    let worst = losses.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn files_of_llama_and_qwen2_have_the_losses_of_a_plain_pass() {
    for (architecture, tied, biased) in [("llama", false, false), ("llama", true, false), ("qwen2", true, true)] {
        let mut tensors = tensors(3, tied);
        let mut random = Random(8);
        let parts = (0..3).flat_map(|layer| [("q", 24), ("k", 12), ("v", 12)].map(|part| (layer, part)));
        for (layer, (part, columns)) in parts.filter(|_| biased) {
            let bias = (0..columns).map(|_| number(&mut random)).collect();
            tensors.insert(format!("blk.{layer}.attn_{part}.bias"), (vec![columns], bias));
        }
        assert_plain(&model(&format!("{architecture}{tied}"), architecture, &tensors), &tensors, None);
    }
}

#[test]
fn files_of_gemma_3_have_the_losses_of_a_plain_pass() {
    let number = |number: u32| (4, number.to_le_bytes().to_vec());
    let float = |number: f32| (6, number.to_le_bytes().to_vec());
    let linear = [&6u64.to_le_bytes()[..], b"linear"].concat();
    // What a file may leave out, and all that it may say.
    let few = vec![("block_count", number(6)), ("attention.sliding_window", number(40))];
    let more = vec![
        ("attention.sliding_window", number(70)),
        ("attention.sliding_window_pattern", number(2)),
        ("rope.freq_base_swa", float(70.0)),
        ("rope.scaling.type", (8, linear)),
        ("rope.scaling.factor", float(8.0)),
    ];
    for (name, layers, keys, gemma) in [
        ("few", 6, few, Gemma { window: 40, period: 6, theta: 10_000.0, stretch: 1.0 }),
        ("more", 3, more, Gemma { window: 70, period: 2, theta: 70.0, stretch: 8.0 }),
    ] {
        let tensors = gemma_tensors(layers);
        let mut file = Written::new("gemma3", tensors.iter().map(|(name, tensor)| in_gguf("gemma3", name, tensor)));
        keys.into_iter().for_each(|(key, (kind, value))| file.set(&format!("gemma3.{key}"), kind, value));
        assert_plain(&file.open(name).unwrap(), &tensors, Some(&gemma));
    }
}

/// A tensor as llama.cpp's conversion writes it. That of a llama interleaves the halves of Q and K.
fn in_gguf(architecture: &str, name: &str, (shape, values): &(Vec<usize>, Vec<f32>)) -> (String, Vec<usize>, Vec<f32>) {
    let mut values = values.clone();
    if architecture == "llama" && (name.contains("attn_q") || name.contains("attn_k")) {
        let width = values.len() / shape[0];
        let head = |head: &[f32]| -> Vec<f32> {
            let row = |at: usize| &head[at * width..][..width];
            (0..3).flat_map(|at| [row(at), row(at + 3)].concat()).collect()
        };
        values = values.chunks(6 * width).flat_map(head).collect();
    }
    (name.to_owned(), shape.clone(), values)
}

/// Texts of random tokens for the model of [`tensors`].
fn random_items(count: usize) -> Vec<Item> {
    let mut random = Random(4);
    let item = |number: usize| Item {
        kind: "random".into(),
        id: number.to_string(),
        tokens: (0..150 - 7 * number).map(|_| random.below(53) as u32).collect(),
        question_from: 110,
        scored: (115..150 - 7 * number).collect(),
    };
    (0..count).map(item).collect()
}

fn named(names: &[&str]) -> Vec<Method> {
    methods().into_iter().filter(|method| names.contains(&method.name.as_str())).collect()
}

/// Measures without progress.
fn measured(model: &Model, request: &Request) -> Results {
    let watch = Watch { stop: &AtomicBool::new(false), done: &|_| () };
    measure(model, request, watch).unwrap()
}

#[test]
fn items_have_the_loss_of_a_plain_pass_and_methods_differ_from_it_as_much_as_they_drop() {
    let tensors = tensors(3, false);
    let model = model("judged", "llama", &tensors);
    let methods = named(&[WHOLE, "recent", "q4_0", "k8v4", "budget"]);
    let request = Request { methods, items: random_items(3), ratios: vec![3.5], batch: 2 };
    let results = measured(&model, &request);
    let left: Vec<&str> = results.left.iter().map(|left| left.method.as_str()).collect();
    assert_eq!(
        left,
        ["q4_0", "budget"],
        "heads of 6 elements have neither groups of 32 nor blocks: {:?}",
        results.left
    );
    for (item, row) in request.items.iter().zip(&results.items) {
        let losses = plain_losses(&tensors, None, &item.tokens);
        let expected = item.scored.iter().map(|at| losses[at - 1]).sum::<f64>() / item.scored.len() as f64;
        assert!((row.loss - expected).abs() < 1e-4, "{} {}: {expected} expected", row.id, row.loss);
    }
    let factor = |name: &str| results.rows.iter().find(|row| row.method == name).expect(name).factor;
    let far = |name: &str| factor(name).ln().abs();
    assert_eq!(factor(WHOLE), 1.0);
    assert!(far("recent") > 0.05, "{:?}", results.rows);
    assert!(far("k8v4") < 1e-5, "heads of 6 elements stay raw: {:?}", results.rows);
}

/// Of one layer, without weights.
const SHAPE: Shape = Shape {
    layers: 1,
    hidden: 1,
    inner: 1,
    heads: 4,
    kv_heads: 2,
    dims: 20,
    vocabulary: 1,
    context: 1,
    epsilon: 0.0,
    theta: 1.0,
    tied: true,
    gemma: None,
};

/// Reads 200 tokens and further ones with a method, and compares the attention of the last row of each step with a plain one
/// over the tokens that the session says are in the cache, of a window alone if the layer has one.
fn attended_as_positions_say(method: &Method, shape: &Shape) -> Chat {
    let mut config = method.config(3.5, 200, shape);
    if method.evicts() {
        config.insert("kv_h2o_layer_start".into(), 0.into());
    }
    let mut chat = Chat::new(shape, &Value::Object(config).to_string(), 300, 0).unwrap();
    let mut random = Random(9);
    let mut rows = |count: usize| -> Vec<f32> { (0..count).map(|_| 3.0 * number(&mut random)).collect() };
    let wide = |row: &[f32]| row.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    let (width, kv_width) = (4 * shape.dims, 2 * shape.dims);
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for added in [200].into_iter().chain([1; 60]).chain([7; 5]) {
        let (query, key, value) = (rows(added * width), rows(added * kv_width), rows(added * kv_width));
        keys.extend(key.chunks(kv_width).map(wide));
        values.extend(value.chunks(kv_width).map(wide));
        let mut output = vec![0.0; added * width];
        chat.step(0, &Projected { query: &query, key: &key, value: &value }, &mut output).unwrap();
        let positions = chat.session().positions(0, None).unwrap();
        let cached = positions.iter().flat_map(|[first, count]| *first as usize..(*first + *count) as usize);
        let is_seen = |at: &usize| shape.window(0).is_none_or(|window| keys.len() - 1 - at < window as usize);
        let cached: Vec<_> = cached.filter(is_seen).map(|at| (&keys[at], &values[at])).collect();
        let query = wide(&query[(added - 1) * width..]);
        let expected = (0..4).flat_map(|head| attention(&query, &cached, head, (shape.dims, 2)));
        let worst = output[(added - 1) * width..].iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
        assert!(worst.fold(0.0, f64::max) < 1e-5, "{} after {} tokens", method.name, keys.len());
    }
    chat
}

/// The shape with a window of so many tokens.
fn local(window: u32, shape: Shape) -> Shape {
    Shape { gemma: Some(Gemma { window, period: 2, theta: 1.0, stretch: 1.0 }), ..shape }
}

/// A chat attends to the tokens that its session says are in the cache, and to no others.
#[test]
fn an_evicted_cache_is_attended_to_as_the_positions_of_the_session_say() {
    for shape in [SHAPE, local(90, SHAPE)] {
        for method in methods().iter().filter(|method| !method.has_least_budget()) {
            let measured = attended_as_positions_say(method, &shape).measured;
            let is_measured = method.evicts() && shape.window(0).is_none();
            assert!(!is_measured || measured.resident < measured.logical / 2, "{}", method.name);
        }
    }
}

/// Of a single token the output is its V.
#[test]
fn a_chat_with_a_rounding_attends_to_rounded_rows() {
    let shape = Shape { dims: 64, ..SHAPE };
    let mut chat = Chat::new(&shape, "{}", 1, 0).unwrap();
    chat.rounding = named(&["q4_0"])[0].rounding;
    let mut value = vec![0.25; 128];
    // A scale of 0.5 for the first 32 numbers of the second head.
    (value[64], value[65], value[66]) = (-4.0, 3.9, 0.3);
    let mut output = vec![0.0; 256];
    let rows = Projected { query: &[1.0; 256], key: &[1.0; 128], value: &value };
    chat.step(0, &rows, &mut output).unwrap();
    assert_eq!(output[128..132], [-4.0, 3.5, 0.5, 0.5]);
    assert_eq!(output[64..66], [0.25; 2]);
}

/// The window has raw tokens alone, so that the output is exact; what it has left behind is gone.
#[test]
fn a_session_that_attends_by_itself_keeps_to_the_window_of_the_layer() {
    let shape = local(16, Shape { dims: 32, ..SHAPE });
    let chat = attended_as_positions_say(&named(&["k8v4"])[0], &shape);
    let (quantised, lengths) =
        (chat.session().metrics(Some(0)).unwrap().quant_tokens, chat.session().lengths(0).unwrap());
    assert!(lengths.logical == 295 && quantised + f64::from(lengths.physical) < 16.0 + 64.0 + 7.0, "{lengths:?}");
}
