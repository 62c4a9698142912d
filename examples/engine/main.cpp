// A chat with the engine, and what must hold at its STEP (docs/adopt.md). Exits with 1 where it does not.

#include "engine.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>

using namespace engine;

namespace {

void require(bool holds, const char* statement, const std::string& error = "") {
    std::printf("%s %s%s%s\n", holds ? "ok:    " : "NOT SO:", statement, error.empty() ? "" : ": ", error.c_str());
    if (!holds) {
        std::exit(1);
    }
}

/// A call that must succeed.
void must(bool succeeds, const std::string& error) {
    if (!succeeds) {
        require(false, "the engine's call succeeds", error);
    }
}

}  // namespace

#if STEP >= 1
/// A call of the library that must succeed.
inline void must(mnnkv::status status) { must(static_cast<bool>(status), status.message()); }
#endif

namespace {

#if STEP >= 2
/// What the session does, warns of and has counted.
std::string report(Engine& engine) {
    std::string text;
    must(static_cast<bool>(engine.session().report(text)), "mnnkv_session_report");
    return text;
}

/// A number of the report, of all layers together, which come first, or of one.
double number(Engine& engine, const std::string& name, std::uint32_t layer = layers) {
    const std::string text = report(engine), key = "\"" + name + "\":";
    const std::size_t from = layer == layers ? 0 : text.find("{\"layer\":" + std::to_string(layer) + ",");
    const std::size_t at = text.find(key, from);
    must(at != std::string::npos, "no " + name + " in " + text);
    return std::strtod(text.c_str() + at + key.size(), nullptr);
}
#endif

/// A made-up text, in which phrases come again.
Tokens story(std::uint32_t length, std::uint64_t seed) {
    Numbers numbers(seed);
    Tokens text;
    while (text.size() < length) {
        Numbers phrase(numbers.bits() % 40);
        for (std::uint32_t i = 0; i < 10; ++i) {
            text.push_back(phrase.bits() % vocabulary);
        }
    }
    text.resize(length);
    return text;
}

/// Everything that the engine can do, in one chat. Returns what it said. `edits`: also what changes the history.
Tokens conversation(Engine& engine, bool edits) {
    Tokens said;
    if (edits) {
        must(engine.read(story(20, 3)), engine.error);
        engine.clear();
        engine.cancel_at = 1;
        must(!engine.read(story(10, 3)) && engine.error == "cancelled", engine.error);
    }
    must(engine.read(story(400, 1)), engine.error);
    must(engine.answer(40, 0, said), engine.error);
    if (edits) {
        must(engine.answer(40, 3, said), engine.error);
        engine.cancel_at = 2;
        must(!engine.answer(1, 0, said) && engine.error == "cancelled", engine.error);
        must(engine.forget(50, 100), engine.error);
        must(engine.read(story(70, 2)), engine.error);
        must(engine.answer(20, 3, said) && engine.forget(4, 8), engine.error);
        must(engine.answer(20, 3, said), engine.error);
    }
    return said;
}

#if STEP == 4
double size_of(const std::string& path) { return static_cast<double>(std::ifstream(path, std::ios::ate).tellg()); }
#endif

void print(const char* name, Engine& engine, const Tokens& said) {
    std::printf("%s: %s...\n", name, text(Tokens(said.end() - 30, said.end())).c_str());
    std::printf("%s: %zu tokens in the chat, %u in the last cache, %zu KiB of caches in memory", name,
                engine.chat.size(), engine.cache(layers - 1).length, engine.resident() / 1024);
#if STEP >= 3
    if (engine.session()) {
        std::printf(", %.0f KiB saved, the library's own memory deducted", number(engine, "h2o_resident_saved_bytes") / 1024);
    }
#endif
    std::printf("\n");
}

#if STEP >= 2
const std::string quant = R"("kv_quant": "k8v4")";
const std::string memory = R"("kv_memory_mb": 2)";
const std::string store = R"("kv_lossless_enable": true, "kv_lossless_runtime_enable": true,
    "kv_lossless_runtime_mode": "store", "kv_lossless_front_n": 8, "kv_lossless_block_tokens": 64,
    "kv_lossless_hot_recent_tokens": 64, "kv_lossless_async_threads": 0)";
#endif

#if STEP == 2 || STEP == 3
/// Both engines have read the same tokens, and read 100 more. The second one may be a little off.
void is_near(Engine& exact, Engine& host) {
    float most = 0, sum = 0;
    std::uint32_t same = 0;
    const Tokens tokens = story(100, 5);
    for (const Token token : tokens) {
        must(exact.read(Tokens(1, token)), exact.error);
        must(host.read(Tokens(1, token)), host.error);
        const std::vector<float> a = exact.logits(), b = host.logits();
        for (std::uint32_t i = 0; i < vocabulary; ++i) {
            most = std::max(most, std::abs(a[i] - b[i]));
            sum += std::abs(a[i] - b[i]);
        }
        same += std::max_element(a.begin(), a.end()) - a.begin() == std::max_element(b.begin(), b.end()) - b.begin();
    }
    std::printf("logits differ by %.3f, at most by %.2f; %u of %zu times the likeliest token is the same\n",
                sum / static_cast<float>(tokens.size() * vocabulary), most, same, tokens.size());
    require(most < 0.75f && same >= 85, "logits are near those of raw tokens");
}

/// All tokens of the chat are there, few of them raw. The others take at most such a share of their bf16.
void is_small(Engine& host, double share) {
    const double bytes = number(host, "quant_bytes"), tokens = number(host, "quant_tokens");
    double raw = 0;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
        must(host.cache(layer).view().layout->max_tokens <= 256, "a cache has grown");
        must(number(host, "quant_tokens", layer) + host.cache(layer).length == static_cast<double>(host.chat.size()),
             "a token is missing");
        raw += host.cache(layer).length;
    }
    must(number(host, "quant_unfit_block_count") + number(host, "quant_failure_count") == 0, "tokens stayed raw");
    const double whole = tokens * kv_heads * dims * 2 * sizeof(Word);
    std::printf("of %zu tokens a layer has %u in fewer bits, which take %.2f of bf16, and %u in its cache\n",
                host.chat.size(), static_cast<unsigned>(tokens / layers), bytes / whole,
                static_cast<unsigned>(raw / layers));
    require(bytes < share * whole, "all tokens are there, in few bytes, and no cache is large");
}
#endif

}  // namespace

int main(int argc, char** argv) {
    (void)argc;
    (void)argv;
    const Model model(7);
    Engine plain(model);

#if STEP == 0
    const Tokens said = conversation(plain, true);
    print("engine", plain, said);
    std::printf("%u of %u drafted tokens were right\n", plain.accepted, plain.drafted);
    Engine other(model);
    Tokens first, second;
    require(other.read(story(400, 1)) && other.answer(80, 0, first), "the same chat without drafts");
    require(std::equal(first.begin(), first.end(), said.begin()), "drafts and a cancelled step change no token");
#endif

#if STEP == 1
    print("engine", plain, conversation(plain, true));
    bool same = true;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
        const Cache& cache = plain.cache(layer);
        const mnnkv_cache view = plain.cache(layer).view();
        std::vector<Word> k(std::size_t(kv_heads) * cache.length * dims), v(k.size());
        const mnnkv::status read = mnnkv_kv_gather(view.layout, view.key, view.value, 0, cache.length, k.data(),
                                                   v.data(), k.size() * sizeof(Word));
        must(read);
        for (std::uint32_t i = 0; i < k.size(); ++i) {
            const std::uint32_t head = i / dims / cache.length, t = i / dims % cache.length, d = i % dims;
            same = same && k[i] == cache.key_at(head, t, d) && v[i] == cache.value_at(head, t, d);
        }
    }
    require(same, "the library reads the numbers that the engine reads");
#endif

#if STEP == 2
    Engine host(model, "{" + quant + "}");
    for (Engine* engine : {&plain, &host}) {
        must(engine->read(story(1000, 1)), engine->error);
    }
    is_near(plain, host);
    Tokens expected, said;
    must(plain.answer(40, 0, expected) && host.answer(40, 0, said), host.error);
    print("plain", plain, expected);
    print("host", host, said);
    is_small(host, 0.44);
    Engine without(model), other(model, "{}");
    require(conversation(other, false) == conversation(without, false),
            "without kv_quant the engine attends itself, and says the same, token by token");
    Engine whole(model), bounded(model, "{" + memory + "}");
    for (Engine* engine : {&whole, &bounded}) {
        must(engine->read(story(1000, 1)), engine->error);
    }
    is_near(whole, bounded);
    std::printf("%.2f MB of %.2f; raw up to %.0f tokens, in fewer bits up to %.0f\n", number(bounded, "bytes") / 1e6,
                number(bounded, "budget_bytes") / 1e6, number(bounded, "raw_tokens"), number(bounded, "quantised_tokens"));
    const bool is_quantised = report(bounded).find("\"state\":\"k8v4\"") != std::string::npos;
    require(number(bounded, "bytes") <= 2000000 && is_quantised, "a budget holds");
    Engine refused(model, R"({"kv_memory_bytes": 1000})");
    Engine again(model);
    require(conversation(refused, false) == conversation(again, false) && !refused.session(),
            "with a budget that is too small for the model the engine runs as before");
    Engine later(model, "{" + memory + "}");
    Engine third(model);
    must(later.cache(1).reserve(1), "memory");
    mnnkv_cache open = later.cache(1).view();
    must(later.session().begin(1, open));  // the engine's begin of this layer is refused
    require(conversation(later, false) == conversation(third, false) && !later.session(),
            "also where a later layer refuses the first step");
#endif

#if STEP == 3
    const Tokens expected = conversation(plain, true);
    Engine host(model, "{" + store + "}");
    const Tokens said = conversation(host, true);
    print("plain", plain, expected);
    print("host", host, said);
    require(said == expected, "the answer is the same, token by token");
    Engine whole(model), small(model, "{" + quant + "}"), bounded(model, "{" + memory + "}");
    (void)conversation(small, true);
    small.clear();
    for (Engine* engine : {&whole, &small, &bounded}) {
        must(engine->read(story(700, 1)), engine->error);
        engine->cancel_at = 2;
        must(!engine->read(story(10, 3)) && engine->error == "cancelled", engine->error);
        must(engine->rollback(600) && engine->forget(0, 100) && engine->forget(50, 100), engine->error);
        must(engine->read(story(70, 2)), engine->error);
    }
    is_near(whole, small);
    is_small(small, 0.6);  // a block keeps the bytes of tokens that an edit removes
    must(whole.rollback(470) && bounded.read(story(100, 5)) && bounded.rollback(470), bounded.error);
    is_near(whole, bounded);
    must(small.forget(0, 20) && small.rollback(200) && small.rollback(100), small.error);
    std::uint32_t logical = 0, physical = 0;
    must(small.session().lengths(layers - 1, logical, physical));
    require(logical == 100 && physical == 0, "a layer without a token in its cache is edited as others");
#endif

#if STEP == 4
    const std::string path = argc > 1 ? argv[1] : "chat.mnnkv", second = path + ".2";
    std::remove(path.c_str());
    std::remove(second.c_str());
    Tokens expected = conversation(plain, true), said, resumed;
    must(plain.answer(20, 0, expected) && plain.rollback(450) && plain.forget(20, 30), plain.error);
    must(plain.read(story(20, 3)) && plain.answer(40, 3, expected), plain.error);
    {
        Engine host(model, "{" + store + "}");
        said = conversation(host, true);
        must(host.save(path), host.error);
        const double one = size_of(path);
        must(host.answer(20, 0, said) && host.save(path), host.error);
        const double two = size_of(path);
        std::printf("%.0f KiB of file, %.0f more for 20 tokens\n", one / 1024, (two - one) / 1024);
        require(two < 1.2 * one, "a second save adds what is new");
    }
    {
        Engine host(model, "{" + store + "}");
        must(host.load(path) && host.rollback(450) && host.forget(20, 30), host.error);
        must(host.save(path) && host.read(story(20, 3)) && host.answer(40, 3, resumed), host.error);
        said.insert(said.end(), resumed.begin(), resumed.end());
        print("plain", plain, expected);
        print("resumed", host, resumed);
        require(said == expected, "a chat that was loaded and edited answers as one that never stopped");
    }
    const Model other(8);
    Engine stranger(other, "{" + store + "}");
    require(!stranger.load(path) && stranger.code() == MNNKV_STALE, "a file of another model is refused", stranger.error);
    std::remove(path.c_str());
    Engine small(model, "{" + quant + "}"), again(model, "{" + quant + "}");
    (void)conversation(small, true);
    must(small.save(path), small.error);
    require(!again.load(path) && again.code() == MNNKV_BUSY, "so is one that another chat has", again.error);
    must(small.save(second) && again.load(path), small.error + again.error);  // small goes on in the second
    said.clear();
    resumed.clear();
    must(small.answer(40, 3, said) && again.answer(40, 3, resumed), again.error);
    require(said == resumed, "a chat in fewer bits goes on in both");
    again.session().reset();
    Engine store_host(model, "{" + store + "}"), same(model, "{" + store + "}");
    must(conversation(store_host, true) == conversation(same, true), "chats differ");
    require(!store_host.load(path) && store_host.code() == MNNKV_UNSUPPORTED, "a session without it refuses the file");
    said.clear();
    resumed.clear();
    must(store_host.answer(40, 3, said) && same.answer(40, 3, resumed), same.error);
    require(said == resumed, "and goes on with its own chat");
    std::remove(path.c_str());
    std::remove(second.c_str());
#endif
}
