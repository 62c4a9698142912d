//! The forward pass and the attention of a chat, beside plain ones in f64.

use super::chat::Chat;
use super::*;
use crate::llama::tests::Written;
use crate::llama::{Projected, Shape, loss};
use crate::quality::tasks::Random;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// Weights by name, with their shapes. Norms have one dimension.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn number(random: &mut Random) -> f32 {
    (random.below(2001) as f32 - 1000.0) / 1000.0
}

fn tensors(tied: bool) -> Tensors {
    let mut random = Random(5);
    let (hidden, inner, query, kv) = (20, 26, 24, 12);
    let mut shapes = vec![("token_embd".to_string(), vec![53, hidden]), ("output_norm".into(), vec![hidden])];
    if !tied {
        shapes.push(("output".into(), vec![53, hidden]));
    }
    for layer in 0..3 {
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

/// The model of a GGUF file that has these tensors.
fn model(name: &str, architecture: &str, tensors: &Tensors) -> Model {
    let tensors = tensors.iter().map(|(name, tensor)| in_gguf(architecture, name, tensor));
    Written::new(architecture, tensors).open(name).unwrap()
}

/// The oracle: the losses of tokens 1 and on, by the definition of the model.
fn plain_losses(tensors: &Tensors, tokens: &[u32]) -> Vec<f64> {
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
    let rotated = |row: Vec<f64>, position: usize| -> Vec<f64> {
        let turn = |at: usize| {
            let (head, dim) = (at / 6 * 6, at % 6);
            let angle = position as f64 / 500f64.powf((dim % 3) as f64 / 3.0);
            let other = if dim < 3 { -row[head + dim + 3] } else { row[head + dim - 3] };
            row[at] * angle.cos() + other * angle.sin()
        };
        (0..row.len()).map(turn).collect()
    };
    let embedding = weight("token_embd");
    let embedded = |token: &u32| embedding[*token as usize * 20..][..20].iter().map(|x| f64::from(*x)).collect();
    let mut states: Vec<Vec<f64>> = tokens.iter().map(embedded).collect();
    for layer in 0..3 {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let rows: Vec<_> = states.iter().map(|state| norm(&name("attn_norm"), state)).collect();
        let project = |part: &str| {
            let name = name(part);
            rows.iter().map(move |row| map(&name, row)).enumerate()
        };
        let query: Vec<_> = project("attn_q").map(|(at, row)| rotated(row, at)).collect();
        let key: Vec<_> = project("attn_k").map(|(at, row)| rotated(row, at)).collect();
        let value: Vec<_> = project("attn_v").map(|(_, row)| row).collect();
        for (at, state) in states.iter_mut().enumerate() {
            let rows: Vec<_> = key.iter().zip(&value).take(at + 1).collect();
            let attended: Vec<f64> = (0..4).flat_map(|head| attention(&query[at], &rows, head, (6, 2))).collect();
            state.iter_mut().zip(map(&name("attn_output"), &attended)).for_each(|(x, more)| *x += more);
            let normed = norm(&name("ffn_norm"), state);
            let (gate, up) = (map(&name("ffn_gate"), &normed), map(&name("ffn_up"), &normed));
            let gated: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
            state.iter_mut().zip(map(&name("ffn_down"), &gated)).for_each(|(x, more)| *x += more);
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
fn assert_plain(model: &Model, tensors: &Tensors) {
    let mut random = Random(3);
    let tokens: Vec<u32> = (0..150).map(|_| random.below(53) as u32).collect();
    let mut chat = Chat::new(model.shape(), "{}", 150, 3).unwrap();
    let mut losses = Vec::new();
    let steps = [0..130, 130..147].into_iter().chain((147..149).map(|at| at..at + 1));
    for step in steps {
        let positions: Vec<usize> = step.clone().collect();
        let attend = |layer: usize, rows: &Projected<'_>, out: &mut [f32]| chat.step(layer, rows, Some(out));
        let states = model.forward(&tokens[step.clone()], &positions, attend).unwrap();
        model.predict(&states, |row, logits| losses.push(loss(logits, tokens[step.start + 1 + row])));
    }
    let expected = plain_losses(tensors, &tokens);
    assert_eq!(losses.len(), expected.len());
    let worst = losses.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn files_of_llama_and_qwen2_have_the_losses_of_a_plain_pass() {
    for (architecture, tied, biased) in [("llama", false, false), ("llama", true, false), ("qwen2", true, true)] {
        let mut tensors = tensors(tied);
        let mut random = Random(8);
        let parts = (0..3).flat_map(|layer| [("q", 24), ("k", 12), ("v", 12)].map(|part| (layer, part)));
        for (layer, (part, columns)) in parts.filter(|_| biased) {
            let bias = (0..columns).map(|_| number(&mut random)).collect();
            tensors.insert(format!("blk.{layer}.attn_{part}.bias"), (vec![columns], bias));
        }
        assert_plain(&model(&format!("{architecture}{tied}"), architecture, &tensors), &tensors);
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
    let tensors = tensors(false);
    let model = model("judged", "llama", &tensors);
    let methods = named(&[WHOLE, "recent", "k8v4", "budget"]);
    let request = Request { methods, items: random_items(3), ratios: vec![3.5], batch: 2 };
    let results = measured(&model, &request);
    assert_eq!(results.left.len(), 1, "a budget has no blocks of heads of 6 elements: {:?}", results.left);
    for (item, row) in request.items.iter().zip(&results.items) {
        let losses = plain_losses(&tensors, &item.tokens);
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
};

/// A chat attends to the tokens that its session says are in the cache, and to no others.
#[test]
fn an_evicted_cache_is_attended_to_as_the_positions_of_the_session_say() {
    let shape = SHAPE;
    let fits = |method: &&Method| !method.has_least_budget();
    for method in methods().iter().filter(fits) {
        let mut keys = method.config(3.5, 200, &shape);
        keys.insert("kv_h2o_layer_start".into(), 0.into());
        let config = Value::Object(keys).to_string();
        let mut chat = Chat::new(&shape, &config, 300, 0).unwrap();
        let mut random = Random(9);
        let mut rows = |count: usize| -> Vec<f32> { (0..count).map(|_| 3.0 * number(&mut random)).collect() };
        let wide = |row: &[f32]| row.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for added in [200].into_iter().chain([1; 60]) {
            let (query, key, value) = (rows(added * 80), rows(added * 40), rows(added * 40));
            keys.extend(key.chunks(40).map(wide));
            values.extend(value.chunks(40).map(wide));
            let mut output = vec![0.0; added * 80];
            chat.step(0, &Projected { query: &query, key: &key, value: &value }, Some(&mut output)).unwrap();
            let positions = chat.session().positions(0, None).unwrap();
            let cached = positions.iter().flat_map(|[first, count]| *first as usize..(*first + *count) as usize);
            let cached: Vec<_> = cached.map(|at| (&keys[at], &values[at])).collect();
            let query = wide(&query[(added - 1) * 80..]);
            let expected = (0..4).flat_map(|head| attention(&query, &cached, head, (20, 2)));
            let worst = output[(added - 1) * 80..].iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
            assert!(worst.fold(0.0, f64::max) < 1e-5, "{} after {} tokens", method.name, keys.len());
        }
        assert!(!method.evicts() || chat.measured.resident < chat.measured.logical / 2, "{}", method.name);
    }
}
