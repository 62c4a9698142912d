// Resident memory, by the system, of a host with 512 MB of KV: 16 layers x 8 KV heads x 128, f16, 8,192 tokens.
//
// A pass over every byte of K and V replaces attention. Its checksum is compared between runs: restored bytes are exact
// in every layer of every step. Memory is sampled after every call of every layer.

#include "report.hpp"

namespace bench {
namespace {

const std::uint32_t layers = 16;
const std::uint32_t tokens = 8192;
const std::uint32_t settled = 280;  // steps until all that is cold is compressed
const std::uint32_t steps = settled + 200;
const std::uint32_t samples_per_step = 3 * layers;

/// The samples of one run.
struct Trace {
    std::vector<double> resident;          // [step][layer][begin, attention, end], bytes above an empty host
    std::vector<std::uint64_t> checksums;  // [step][layer]
    std::string report;
    double seconds_per_step;

    double at_end(std::uint32_t step) const { return resident[(step + 1) * samples_per_step - 1]; }
};

std::uint64_t checksum(const void* data, std::size_t bytes) {
    const unsigned char* at = static_cast<const unsigned char*>(data);
    std::uint64_t lanes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (std::size_t i = 0; i + sizeof lanes <= bytes; i += sizeof lanes) {
        std::uint64_t words[8];
        std::memcpy(words, at + i, sizeof words);
        for (int j = 0; j < 8; ++j) {
            lanes[j] = (lanes[j] ^ words[j]) * 0x9e3779b97f4a7c15u;
        }
    }
    std::uint64_t sum = 0;
    for (std::uint64_t lane : lanes) {
        sum = mix(sum ^ lane);
    }
    return sum;
}

/// Reads K and V of a layer, in the packing units and flash blocks that are full: behind the last token is what an eviction
/// left there, in the cache or not.
std::uint64_t read_all(const PackedCache& cache) {
    const std::size_t row = Content::dims * sizeof(half);
    const std::size_t key = cache.length() / 16 * 16 * row, value = cache.length() / 64 * 64 * row;
    std::uint64_t sum = 0;
    for (std::uint32_t h = 0; h < Caches::kv_heads; ++h) {
        sum = mix(sum ^ checksum(cache.key(h), key));
        sum = mix(sum ^ checksum(cache.value(h), value));
    }
    return sum;
}

/// Made-up attention: blocks of 32 tokens weigh differently, some a lot. Memory hardly depends on the evicted tokens.
void made_up_scores(Session& session, std::uint32_t layer, std::uint32_t length) {
    static std::vector<float> weights(tokens);
    float sum = 0;
    for (std::uint32_t t = 0; t < length; ++t) {
        const float uniform = float(mix(layer * 65536 + t / 32) % 10000 + 1) / 10001;
        weights[t] = 1 / (uniform * uniform * 100 + 0.01f);
        sum += weights[t];
    }
    mnnkv_score_tile tile = mnnkv::make<mnnkv_score_tile>();
    tile.dtype = MNNKV_DTYPE_F32;
    tile.queries = 1;
    tile.tokens = length;
    tile.flags = MNNKV_TILE_FIRST | MNNKV_TILE_LAST;
    tile.data = weights.data();
    tile.row_sum = &sum;
    session.sums(layer, tile);
}

Trace run(Table& table, const char* name, const Content& content, const std::string& config, bool evicts) {
    Trace trace;
    trace.resident.reserve(steps * samples_per_step);
    trace.checksums.reserve(steps * layers);
    trim_heap();
    const double empty = double(resident_bytes());
    Caches caches(content, layers, tokens);
    Session session(config, layers);
    const auto sample = [&] { trace.resident.push_back(double(resident_bytes()) - empty); };
    for (std::uint32_t l = 0; l < layers; ++l) {
        session.begin(l, caches[l]);
        caches.append(l, tokens - steps);
        session.end(l, caches[l], 1, tokens - steps);
    }
    const double start = seconds();
    for (std::uint32_t step = 0; step < steps; ++step) {
        for (std::uint32_t l = 0; l < layers; ++l) {
            session.begin(l, caches[l]);
            sample();
            caches.append(l, 1);
            trace.checksums.push_back(read_all(caches[l]));
            sample();
            if (evicts) {
                made_up_scores(session, l, caches[l].length());
            }
            session.end(l, caches[l], 1, 1);
            sample();
        }
    }
    trace.seconds_per_step = (seconds() - start) / steps;
    if (session.on()) {
        trace.report = session.report();
        for (std::uint32_t l = 0; l < layers; ++l) {
            session.begin(l, caches[l]);
            const std::vector<std::int32_t> pairs = session.positions(l, caches[l].length());
            if (!caches.holds(l, pairs.data(), pairs.size() / 2)) {
                std::fprintf(stderr, "%s: layer %u: a kept token is not what it was\n", name, l);
                std::exit(1);
            }
        }
    }
    const auto mb = [](double bytes) { return number("%.0f", bytes / 1e6); };
    table.row({name, mb(trace.at_end(0)), mb(trace.at_end(steps - 1)),
               mb(*std::max_element(trace.resident.begin(), trace.resident.end())),
               number("%.0f", trace.seconds_per_step * 1e3)});
    return trace;
}

/// The claims about a store run, beside the same run without it.
void store_claims(const Trace& base, const Trace& store, Report& report) {
    const double ratio = mnnkv_host::json_number_of(store.report, "h2o_lossless_ratio");
    double worst = 1e9, above = -1e9;
    std::vector<double> shares;
    for (std::uint32_t step = 0; step < steps; ++step) {
        const double cold = double(tokens - steps + step + 1 - 16 - 256) * Caches::token_bytes * layers;
        const double fall = base.at_end(step) - store.at_end(step);
        if (step >= settled) {
            shares.push_back(100 * fall / cold);
            worst = std::min(worst, shares.back());
        }
    }
    for (std::size_t i = 0; i < base.resident.size(); ++i) {
        const double more = store.resident[i] / base.resident[i] - 1;
        above = std::max(above, more);
    }
    const double promised = 100 * (1 - 1 / ratio) - 3;
    report.claim(true, "store: lossless ratio of the contents", ratio, "");
    report.claim(worst >= promised, "store: falls by " + number("%.1f", promised) + " % of the cold range, least of " +
                 std::to_string(shares.size()) + " steps", worst, "%");
    report.claim(above <= 0.02, "store: never more than 2 % above baseline", 100 * above, "%");
    report.exact(base.checksums == store.checksums, "store: bytes of a step differ from those of baseline");
}

}  // namespace

void memory(const Content& content, Report& report) {
    Table table("memory", "one thread, 512 MB of KV",
                {"run", "MB after the prompt", "MB at the end", "MB at most", "ms a step"});
    const Trace base = run(table, "without mnn-kv", content, "", false);
    const Trace h2o = run(table, "h2o at 3.5:1", content, "{" + h2o_config() + "}", true);
    const Trace store = run(table, "store, one worker", content, "{" + store_config(layers, 1) + "}", false);
    const Trace both = run(table, "h2o and store", content,
                           "{" + h2o_config() + ", " + store_config(layers, 1) + "}", true);
    table.print();

    const double end = base.at_end(steps - 1);
    report.claim(h2o.at_end(steps - 1) <= 0.4 * end, "h2o: releases 60 % or more",
                 100 * (1 - h2o.at_end(steps - 1) / end), "%");
    store_claims(base, store, report);
    const double raw = double(tokens) * Caches::token_bytes * layers;
    const double joint = raw / (raw - mnnkv_host::json_number_of(both.report, "h2o_resident_saved_bytes"));
    report.claim(joint >= 4, "h2o and store: raw KV over what is held, 4 or more", joint, "x");
    report.claim(end / both.at_end(steps - 1) >= 4, "h2o and store: the same by the system",
                 end / both.at_end(steps - 1), "x");
    report.exact(h2o.checksums == both.checksums, "h2o and store: bytes of a step differ from those of h2o alone");
}

}  // namespace bench
