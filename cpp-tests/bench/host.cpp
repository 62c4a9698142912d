// The host's path through the C ABI beside its rivals: memcpy of the same bytes, and loops that compute every index.
// One table; the last column is the time of a rival over the time of mnn-kv.
//
// Every result is compared before it is timed.

#include "../oracle/packing.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

using Word = std::uint16_t;
using Bytes = std::vector<unsigned char>;

void check(mnnkv::status status, const char* what) {
    if (!status) {
        std::fprintf(stderr, "%s: %s: %s\n", what, status.name(), status.message());
        std::exit(1);
    }
}

void require(bool holds, const char* what) {
    if (!holds) {
        std::fprintf(stderr, "%s: wrong result\n", what);
        std::exit(1);
    }
}

struct Rival {
    const char* name;
    std::function<void()> body;
};

/// Runs all rivals in turn, round after round, and prints the medians.
void race(const std::string& title, double bytes, const std::vector<Rival>& rivals) {
    using clock = std::chrono::steady_clock;
    std::vector<std::vector<double>> times(rivals.size());
    const clock::time_point start = clock::now();
    while (times[0].size() < 5 || (clock::now() - start < std::chrono::milliseconds(800) && times[0].size() < 1000)) {
        for (std::size_t i = 0; i < rivals.size(); ++i) {
            const clock::time_point lap = clock::now();
            rivals[i].body();
            times[i].push_back(std::chrono::duration<double>(clock::now() - lap).count());
        }
    }
    std::printf("%s\n", title.c_str());
    double first = 0;
    for (std::size_t i = 0; i < rivals.size(); ++i) {
        std::nth_element(times[i].begin(), times[i].begin() + static_cast<std::ptrdiff_t>(times[i].size() / 2),
                         times[i].end());
        const double median = times[i][times[i].size() / 2];
        first = i == 0 ? median : first;
        std::printf("    %-28s %10.1f us %10.0f MB/s   %7.2f x\n", rivals[i].name, median * 1e6, bytes / median / 1e6,
                    median / first);
    }
}

/// An f16 cache as MNN packs it on 64-bit Arm, with a host's own index functions.
struct Cache {
    oracle::packing packing;
    const mnnkv_layout& layout;
    std::vector<Word> key, value;

    Cache(std::uint32_t heads, std::uint32_t tokens)
        : packing(oracle::make_layout(oracle::pack_modes[7], heads, 128, tokens, 64)), layout(packing.layout()),
          key(packing.key_bytes() / sizeof(Word)), value(packing.value_bytes() / sizeof(Word)) {
        std::mt19937 random(7);
        std::generate(key.begin(), key.end(), [&] { return static_cast<Word>(0x3000 + random() % 4096); });
        std::generate(value.begin(), value.end(), [&] { return static_cast<Word>(0x3000 + random() % 4096); });
    }
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;

    std::size_t key_index(std::size_t t, std::size_t d) const { return packing.key_index(t, d); }
    std::size_t value_index(std::size_t t, std::size_t d) const { return packing.value_index(t, d); }

    void move_by_element(std::size_t src, std::size_t dst, std::size_t count) {
        for (std::size_t h = 0; h < layout.kv_heads; ++h) {
            Word* k = key.data() + h * packing.key_head();
            Word* v = value.data() + h * packing.value_head();
            for (std::size_t i = 0; i < count; ++i) {
                for (std::size_t d = 0; d < layout.head_dim; ++d) {
                    k[key_index(dst + i, d)] = k[key_index(src + i, d)];
                    v[value_index(dst + i, d)] = v[value_index(src + i, d)];
                }
            }
        }
    }

    void gather_by_element(std::size_t tokens, Word* keys, Word* values) const {
        for (std::size_t h = 0; h < layout.kv_heads; ++h) {
            for (std::size_t t = 0; t < tokens; ++t) {
                for (std::size_t d = 0; d < layout.head_dim; ++d) {
                    const std::size_t at = (h * tokens + t) * layout.head_dim + d;
                    keys[at] = key[h * packing.key_head() + key_index(t, d)];
                    values[at] = value[h * packing.value_head() + value_index(t, d)];
                }
            }
        }
    }

    void scatter_by_element(std::size_t tokens, const Word* keys, const Word* values) {
        for (std::size_t h = 0; h < layout.kv_heads; ++h) {
            for (std::size_t t = 0; t < tokens; ++t) {
                for (std::size_t d = 0; d < layout.head_dim; ++d) {
                    const std::size_t at = (h * tokens + t) * layout.head_dim + d;
                    key[h * packing.key_head() + key_index(t, d)] = keys[at];
                    value[h * packing.value_head() + value_index(t, d)] = values[at];
                }
            }
        }
    }
};

/// Runs of any length at any place, about one token in 3.5.
std::vector<std::int32_t> arbitrary_pairs(std::uint32_t tokens) {
    std::mt19937 random(11);
    std::vector<std::int32_t> pairs;
    for (std::uint32_t t = random() % 320; t < tokens; t += random() % 320) {
        const std::uint32_t count = std::min<std::uint32_t>(1 + random() % 127, tokens - t);
        pairs.push_back(static_cast<std::int32_t>(t));
        pairs.push_back(static_cast<std::int32_t>(count));
        t += count;
    }
    return pairs;
}

void bench_compact(Cache& ours, Cache& loop, const std::string& kind, const std::vector<std::int32_t>& pairs,
                   std::uint32_t tokens) {
    const std::size_t n_pairs = pairs.size() / 2;
    std::uint32_t kept = 0;
    const auto compact = [&] {
        check(mnnkv_kv_compact(&ours.layout, ours.key.data(), ours.value.data(), 0, pairs.data(), n_pairs, tokens,
                               &kept),
              "compact");
    };
    const auto compact_by_element = [&] {
        std::size_t dst = 0;
        for (std::size_t i = 0; i < n_pairs; ++i) {
            const std::size_t count = static_cast<std::size_t>(pairs[2 * i + 1]);
            loop.move_by_element(static_cast<std::size_t>(pairs[2 * i]), dst, count);
            dst += count;
        }
    };
    compact();
    compact_by_element();
    const std::size_t moved = std::size_t(ours.layout.kv_heads) * kept * 128;
    std::vector<Word> keys(moved), values(moved), other_keys(moved), other_values(moved);
    ours.gather_by_element(kept, keys.data(), values.data());
    loop.gather_by_element(kept, other_keys.data(), other_values.data());
    require(keys == other_keys && values == other_values, "compact");
    race("compact, " + kind + " plan, to " + std::to_string(kept) + " of " + std::to_string(tokens) + " tokens",
         2.0 * double(moved) * sizeof(Word),
         {{"mnnkv_kv_compact", compact},
          {"element loop", compact_by_element},
          {"memcpy", [&] {
               std::memcpy(other_keys.data(), keys.data(), moved * sizeof(Word));
               std::memcpy(other_values.data(), values.data(), moved * sizeof(Word));
           }}});
}

void bench_layout(std::uint32_t heads, std::uint32_t tokens) {
    Cache ours(heads, tokens), loop(heads, tokens);
    const std::string size = std::to_string(tokens) + " tokens, " + std::to_string(heads) + " heads x 128, f16, hP 16";
    const std::size_t elements = std::size_t(heads) * tokens * 128;
    std::vector<Word> keys(elements), values(elements), other_keys(elements), other_values(elements);
    const auto gather = [&] {
        check(mnnkv_kv_gather(&ours.layout, ours.key.data(), ours.value.data(), 0, tokens, keys.data(), values.data(),
                                elements * sizeof(Word)),
                "gather");
    };
    gather();
    loop.gather_by_element(tokens, other_keys.data(), other_values.data());
    require(keys == other_keys && values == other_values, "gather");
    const double bytes = 2.0 * double(elements) * sizeof(Word);
    race("gather, " + size, bytes,
         {{"mnnkv_kv_gather", gather},
          {"element loop", [&] { loop.gather_by_element(tokens, other_keys.data(), other_values.data()); }},
          {"memcpy", [&] {
               std::memcpy(other_keys.data(), keys.data(), elements * sizeof(Word));
               std::memcpy(other_values.data(), values.data(), elements * sizeof(Word));
           }}});
    race("scatter, " + size, bytes,
         {{"mnnkv_kv_scatter", [&] {
               check(mnnkv_kv_scatter(&ours.layout, keys.data(), values.data(), elements * sizeof(Word), 0, tokens,
                                        ours.key.data(), ours.value.data()),
                       "scatter");
           }},
          {"element loop", [&] { loop.scatter_by_element(tokens, keys.data(), values.data()); }},
          {"memcpy", [&] {
               std::memcpy(other_keys.data(), keys.data(), elements * sizeof(Word));
               std::memcpy(other_values.data(), values.data(), elements * sizeof(Word));
           }}});
    require(ours.key == loop.key && ours.value == loop.value, "scatter");

    // A plan at 3.5:1 over random scores, as h2o makes it.
    std::mt19937 random(3);
    std::vector<float> scores((tokens + 63) / 64);
    std::generate(scores.begin(), scores.end(), [&] { return static_cast<float>(random() % 100000); });
    std::vector<std::int32_t> pairs(scores.size() + 3);
    std::size_t n_pairs = 0;
    mnnkv_h2o_plan plan = mnnkv::make<mnnkv_h2o_plan>();
    check(mnnkv_h2o_plan_reserve(scores.data(), scores.size(), tokens, nullptr, pairs.data(), pairs.size() / 2,
                                 &n_pairs, &plan),
            "plan");
    pairs.resize(2 * n_pairs);
    bench_compact(ours, loop, "block", pairs, tokens);
    bench_compact(ours, loop, "arbitrary", arbitrary_pairs(tokens), tokens);
    race("plan, " + std::to_string(tokens) + " tokens (bytes: scores)", double(scores.size()) * sizeof(float),
         {{"mnnkv_h2o_plan_reserve", [&] {
               check(mnnkv_h2o_plan_reserve(scores.data(), scores.size(), tokens, nullptr, pairs.data(),
                                            pairs.size() / 2, &n_pairs, &plan),
                       "plan");
           }}});
}

void bench_codec(const std::string& file) {
    Bytes words(2 * 1088 * 64 * sizeof(Word));
    const std::string path = std::string(MNNKV_SAMPLE_DIR) + "/" + file;
    std::FILE* sample = std::fopen(path.c_str(), "rb");
    require(sample != nullptr && std::fread(words.data(), 1, words.size(), sample) == words.size(), path.c_str());
    std::fclose(sample);

    Bytes blob(mnnkv_gear_bound(words.size(), MNNKV_DTYPE_F16)), back(words.size()), copy(words.size());
    std::size_t blob_len = 0, back_len = 0;
    const auto encode = [&] {
        check(mnnkv_encode_fp16_gear(words.data(), words.size(), nullptr, blob.data(), blob.size(), &blob_len),
              "encode");
    };
    const auto decode = [&] {
        check(mnnkv_decode_fp16_gear(blob.data(), blob_len, back.data(), back.size(), &back_len), "decode");
    };
    encode();
    decode();
    require(back_len == words.size() && back == words, "round trip");
    char title[128];
    std::snprintf(title, sizeof title, "codec, %s, ratio %.3f", file.c_str(), double(words.size()) / double(blob_len));
    race(title, double(words.size()),
         {{"mnnkv_encode_fp16_gear", encode},
          {"mnnkv_decode_fp16_gear", decode},
          {"memcpy", [&] { std::memcpy(copy.data(), words.data(), words.size()); }}});
}

}  // namespace

int main() {
    std::printf("mnn-kv %u, SIMD level %s; last column: time of a rival / time of the first row\n\n", mnnkv_version(),
                mnnkv_cpu_level());
    bench_codec("l0_k_h2_t1088_d64.f16");
    bench_codec("l0_v_h2_t1088_d64.f16");
    bench_layout(8, 4096);
    bench_layout(2, 32768);
    bench_layout(2, 131072);
    return 0;
}
