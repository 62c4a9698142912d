// The caches of a host through the C ABI beside its rivals: memcpy of the same bytes, and loops that compute every index.
//
// Every result is compared before it is timed.

#include "../demo/table.hpp"
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

using demo::number;
using demo::Table;
using Word = std::uint16_t;

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

/// Runs all rivals in turn, round after round. Returns their medians in seconds.
std::vector<double> race(const std::vector<Rival>& rivals) {
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
    std::vector<double> medians;
    for (std::vector<double>& laps : times) {
        std::sort(laps.begin(), laps.end());
        medians.push_back(laps[laps.size() / 2]);
    }
    return medians;
}

/// A row of the first rival's speed, and how many times as fast it is as the others.
void race(Table& table, const std::string& title, double bytes, const std::vector<Rival>& rivals) {
    const std::vector<double> medians = race(rivals);
    Table::Row row{title, number("%.0f", bytes / medians[0] / 1e6)};
    for (std::size_t i = 1; i < medians.size(); ++i) {
        row.push_back(number("%.2f", medians[i] / medians[0]));
    }
    table.row(row);
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

void bench_compact(Table& table, Cache& ours, Cache& loop, const std::string& kind,
                   const std::vector<std::int32_t>& pairs, std::uint32_t tokens) {
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
    race(table, "compact, " + kind + " plan, " + std::to_string(tokens) + " tokens", 2.0 * double(moved) * sizeof(Word),
         {{"mnnkv_kv_compact", compact},
          {"element loop", compact_by_element},
          {"memcpy", [&] {
               std::memcpy(other_keys.data(), keys.data(), moved * sizeof(Word));
               std::memcpy(other_values.data(), values.data(), moved * sizeof(Word));
           }}});
}

void bench_layout(Table& table, std::uint32_t heads, std::uint32_t tokens) {
    Cache ours(heads, tokens), loop(heads, tokens);
    const std::string size = std::to_string(tokens) + " tokens";
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
    race(table, "gather, " + size, bytes,
         {{"mnnkv_kv_gather", gather},
          {"element loop", [&] { loop.gather_by_element(tokens, other_keys.data(), other_values.data()); }},
          {"memcpy", [&] {
               std::memcpy(other_keys.data(), keys.data(), elements * sizeof(Word));
               std::memcpy(other_values.data(), values.data(), elements * sizeof(Word));
           }}});
    race(table, "scatter, " + size, bytes,
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
    bench_compact(table, ours, loop, "block", pairs, tokens);
    bench_compact(table, ours, loop, "any", arbitrary_pairs(tokens), tokens);
}

}  // namespace

int main() {
    Table table("host", "one thread", {"call", "MB/s", "x element loop", "x memcpy"});
    bench_layout(table, 8, 4096);
    bench_layout(table, 2, 131072);
    table.print();
    return 0;
}
