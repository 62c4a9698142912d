// A C++ host as it was written for the first version of this ABI: the wrappers of the headers in abi/ are compiled into
// it.

#include <mnnkv.hpp>
#ifdef MNNKV_MODEL
#include <mnnkv/model.hpp>
#endif

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {

int failures = 0;

void check(const char* what, const mnnkv::status& status) {
    if (!status) {
        std::fprintf(stderr, "%s: %s: %s\n", what, status.name(), status.message());
        ++failures;
    }
}

void expect(const char* what, bool holds) {
    if (!holds) {
        std::fprintf(stderr, "%s does not hold\n", what);
        ++failures;
    }
}

/// A row-major layer of f32 with one head.
struct layer {
    static constexpr std::uint32_t dims = 16, room = 2048;
    mnnkv_layout layout = mnnkv::make<mnnkv_layout>();
    std::vector<float> key = std::vector<float>(dims * room), value = key;
    mnnkv_cache cache = mnnkv::make<mnnkv_cache>();

    layer() {
        layout.key_dtype = layout.value_dtype = MNNKV_DTYPE_F32;
        layout.kv_heads = layout.l_pack = layout.h_pack = layout.flash_block = 1;
        layout.head_dim = dims;
        layout.max_tokens = room;
        cache.layout = &layout;
        cache.key = key.data();
        cache.value = value.data();
    }

    void step(mnnkv::session& session, std::uint32_t count) {
        check("begin", session.begin(0, cache));
        for (std::uint32_t i = cache.kv_len * dims; i < (cache.kv_len + count) * dims; ++i) {
            key[i] = static_cast<float>(i % 7);
            value[i] = static_cast<float>(i / dims);
        }
        cache.kv_len += count;
        std::uint32_t rows = 0, block_tokens = 0;
        check("scored rows", session.scored_rows(0, count, rows, block_tokens));
        expect("no sums: keys and values tell", rows == 0);
        check("end", session.end(0, count == 1 ? 1 : 0, count == 1 ? 1 : 0, cache));
    }
};

void chat() {
    const std::string config = R"({"kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_nonsense": 1})";
    mnnkv::session made;
    check("create", made.create(config.data(), config.size(), 1, 1));
    mnnkv::session session = std::move(made);
    expect("a moved handle", session && !made);
    std::string text;
    check("warnings", session.warnings(text));
    expect("the unknown key", text.find("kv_h2o_nonsense") != std::string::npos);

    layer layer;
    layer.step(session, 1400);
    for (int i = 0; i < 20; ++i) {
        layer.step(session, 1);
    }
    std::uint32_t logical = 0, physical = 0;
    check("lengths", session.lengths(0, logical, physical));
    expect("an eviction", logical == 1420 && physical == layer.cache.kv_len && physical < 600);
    expect("the first token", layer.value[layer::dims - 1] == 0 && layer.value[layer::dims] == 1);
    mnnkv_metrics metrics = mnnkv_metrics();
    check("metrics", session.metrics(metrics));
    expect("evicted tokens", metrics.h2o_total_evict_tokens == logical - physical);
    expect("what was not measured", !mnnkv::measured(metrics.h2o_lossless_async_queue_peak));
    check("JSON", session.metrics_json(text));
    expect("a name in it", text.find("\"h2o_total_evict_tokens\":") != std::string::npos);

    const mnnkv::status refused = session.reset_layer(7);
    expect("a refusal", refused.code() == MNNKV_INVALID_ARGUMENT && std::string(refused.name()) == "INVALID_ARGUMENT");
    expect("its text", std::string(refused.message()).find("layer") != std::string::npos);
    check("reset", session.reset_all());
}

void file() {
    const char* const path = "mnnkv_old_host.chat";
    std::remove(path);
    mnnkv_snapshot_options options = mnnkv::make<mnnkv_snapshot_options>();
    options.path = path;
    options.access = MNNKV_SNAPSHOT_APPEND;
    mnnkv::snapshot snapshot;
    check("a file", snapshot.create(options));
    check("put", snapshot.put("tokens", "1 2 3", 5));
    check("commit", snapshot.commit());
    snapshot.reset();
    check("open", snapshot.open(options));
    std::string text;
    check("section", snapshot.section("tokens", text));
    expect("what was put", text == "1 2 3");
    mnnkv_snapshot_info info = mnnkv_snapshot_info();
    check("info", snapshot.info(info));
    expect("one section", info.sections == 1 && info.layers == 0);
    check("verify", snapshot.verify(text));
    expect("no damage", text.empty());
    snapshot.reset();
    std::remove(path);
}

#ifdef MNNKV_MODEL
void size() {
    const std::string config =
        R"({"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16})";
    mnnkv::sizing model;
    check("read a config", model.create(config.data(), config.size()));
    const mnnkv_sizing_options options = mnnkv::sizing_defaults();
    mnnkv_sizing_total total = mnnkv_sizing_total();
    check("bytes", model.bytes(100, total, &options));
    expect("2 x 4 layers x 2 heads x 16 x 2 bytes a token", total.raw == 100u * 512);
}
#endif

}  // namespace

int main() {
    expect("the library is not older", mnnkv_version() >= MNNKV_VERSION_NUMBER);
    chat();
    file();
#ifdef MNNKV_MODEL
    size();
#endif
    std::printf("old C++ host of %d.%d.%d: %s\n", MNNKV_VERSION_MAJOR, MNNKV_VERSION_MINOR, MNNKV_VERSION_PATCH,
                failures == 0 ? "runs" : "FAILED");
    return failures == 0 ? 0 : 1;
}
