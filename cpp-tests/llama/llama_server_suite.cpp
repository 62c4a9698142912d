// The host-memory cache of llama-server with the lines of llama-server.patch: prompts come back as they were saved.

#include "support.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <list>

#ifndef _WIN32
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace {
bool memory_loses_a_bit = false;
}
#define MNNKV_LLAMA_DAMAGE memory_loses_a_bit
#include "mnnkv_llama_server.hpp"
#include "mnnkv_llama_slot_file.hpp"

namespace {

using namespace support;

/// As server_prompt_cache_state, of the fields that the adapter reads.
struct saved_prompt {
    struct checkpoint {
        bytes data_tgt, data_dft, data_spec;
    };
    struct {
        std::list<checkpoint> checkpoints;
    } prompt;
    struct {
        bytes main, drft;
    } data;
    mnnkv_llama::packed_prompt packed;

    bytes all() const {
        bytes joined = data.main;
        joined.insert(joined.end(), data.drft.begin(), data.drft.end());
        for (const checkpoint& each : prompt.checkpoints) {
            for (const bytes* part : {&each.data_tgt, &each.data_dft, &each.data_spec}) {
                joined.insert(joined.end(), part->begin(), part->end());
            }
        }
        return joined;
    }
};

/// A state of one stream and one layer, whose K and V are f16 numbers that compress.
bytes state(dice& random, std::uint32_t cells) {
    bytes out;
    const auto put = [&](auto number) {
        const auto* first = reinterpret_cast<const std::uint8_t*>(&number);
        out.insert(out.end(), first, first + sizeof number);
    };
    put(std::uint32_t{1});
    put(cells);
    for (std::uint32_t cell = 0; cell < cells; ++cell) {
        put(cell);
        put(std::uint32_t{0});
    }
    put(std::uint32_t{0});
    put(std::uint32_t{1});
    for (int kind = 0; kind < 2; ++kind) {
        put(std::int32_t{1});
        put(std::uint64_t{128});
        for (std::uint32_t i = 0; i < cells * 64; ++i) {
            put(static_cast<std::uint16_t>(0x3800u + random.below(256)));
        }
    }
    return out;
}

saved_prompt prompt(dice& random, std::uint32_t cells) {
    saved_prompt made;
    made.data.main = state(random, cells);
    if (random.one_in(2)) {
        made.data.drft = random.noise(random.below(500));
    }
    for (std::uint32_t i = random.below(3); i > 0; --i) {
        made.prompt.checkpoints.push_back({state(random, 1 + random.below(40)), {}, random.noise(random.below(9))});
    }
    return made;
}

bool unpack(saved_prompt& from) {
    std::string why;
    const bool whole = from.packed.unpack(mnnkv_llama::buffers_of(from), why);
    EXPECT_EQ(whole, why.empty()) << why;
    return whole;
}

/// Waits for the thread: the size counts blobs then, and no ratio of an earlier prompt.
void wait_for_fewer(const saved_prompt& waiting, std::size_t bytes) {
    for (int i = 0; i < 2000 && waiting.packed.size() >= bytes; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_LT(waiting.packed.size(), bytes);
}

TEST(LlamaServer, GivesEachPromptBackAsItWasWheneverItIsWanted) {
    SEEDED_DICE(random, 2101);
    mnnkv_llama::prompt_packer packer;
    for (int round = 0; round < 40; ++round) {
        std::list<saved_prompt> cache;
        std::vector<bytes> expected;
        for (std::uint32_t i = 1 + random.below(6); i > 0; --i) {
            cache.push_back(prompt(random, 1 + random.below(300)));
            expected.push_back(cache.back().all());
            packer.pack(cache.back());
        }
        if (random.one_in(2)) {
            std::this_thread::sleep_for(std::chrono::milliseconds(random.below(8)));
        }
        std::size_t at = 0;
        for (saved_prompt& each : cache) {
            // Some are dropped with their work under way.
            if (!random.one_in(4)) {
                saved_prompt copy = each;
                ASSERT_TRUE(!random.one_in(2) || unpack(copy));
                EXPECT_TRUE(copy.packed.size() > 0 || same(copy.all(), expected[at])) << "round " << round;
                ASSERT_TRUE(unpack(each));
                EXPECT_TRUE(same(each.all(), expected[at])) << "round " << round;
                EXPECT_EQ(each.packed.size(), 0u);
            }
            ++at;
        }
    }
}

TEST(LlamaServer, CountsTheBytesOfBlobs) {
    SEEDED_DICE(random, 2102);
    mnnkv_llama::prompt_packer packer;
    saved_prompt first;
    first.data.main = state(random, 2000);
    const std::size_t raw = first.data.main.size();
    EXPECT_EQ(packer.expected(raw), raw) << "nothing is known of the ratio yet";
    packer.pack(first);
    EXPECT_TRUE(first.data.main.empty());
    wait_for_fewer(first, raw * 3 / 4);
    EXPECT_LT(packer.expected(raw), raw * 3 / 4);
}

TEST(LlamaServer, LeavesNoiseRaw) {
    SEEDED_DICE(random, 2103);
    mnnkv_llama::prompt_packer packer;
    saved_prompt noise, next;
    noise.data.main = random.noise(50000);
    next.data.main = state(random, 1000);
    const bytes expected = noise.all();
    const std::size_t raw = next.data.main.size();
    packer.pack(noise);
    packer.pack(next);
    // Prompts are encoded in turn.
    wait_for_fewer(next, raw);
    EXPECT_EQ(noise.packed.size(), 50000u);
    ASSERT_TRUE(unpack(noise));
    EXPECT_TRUE(same(noise.all(), expected));
}

TEST(LlamaServer, RefusesABlobThatHasLostABit) {
    SEEDED_DICE(random, 2104);
    mnnkv_llama::prompt_packer packer;
    saved_prompt damaged;
    damaged.data.main = state(random, 1000);
    const std::size_t raw = damaged.data.main.size();
    packer.pack(damaged);
    wait_for_fewer(damaged, raw);
    memory_loses_a_bit = true;
    EXPECT_FALSE(unpack(damaged));
    memory_loses_a_bit = false;
    EXPECT_EQ(damaged.packed.size(), 0u);
}

TEST(LlamaServer, EndsWithPromptsThatWait) {
    SEEDED_DICE(random, 2105);
    std::list<saved_prompt> cache;
    {
        mnnkv_llama::prompt_packer packer;
        for (int i = 0; i < 8; ++i) {
            cache.push_back(prompt(random, 2000));
            packer.pack(cache.back());
        }
    }
    for (saved_prompt& each : cache) {
        EXPECT_TRUE(unpack(each));
        EXPECT_GT(each.data.main.size(), 2000u * 256);
    }
}

/// The f16 numbers of K, or of V, in a state of `state`: its last bytes are V, and a type and a length are between.
std::vector<float> numbers(const bytes& state, std::uint32_t cells, bool keys) {
    const std::size_t size = std::size_t(cells) * 128, at = state.size() - size - (keys ? size + 12 : 0);
    std::vector<float> found(size / 2);
    for (std::size_t i = 0; i < found.size(); ++i) {
        found[i] = mnnkv_llama::float_of_half(static_cast<std::uint16_t>(state[at + 2 * i] | state[at + 2 * i + 1] << 8));
    }
    return found;
}

/// Sets the f16 numbers of a state to others of all sizes and both signs.
void spread(dice& random, bytes& state, std::uint32_t cells) {
    const std::size_t size = std::size_t(cells) * 128;
    for (std::size_t i = 0; i < size; i += 2) {
        for (const std::size_t at : {state.size() - size + i, state.size() - 2 * size - 12 + i}) {
            state[at] = static_cast<std::uint8_t>(random.below(256));
            state[at + 1] = static_cast<std::uint8_t>(random.below(2) << 7 | (random.one_in(8) ? random.below(0x7c) : 0x34 + random.below(8)));
        }
    }
}

/// Packs a prompt, and waits for its blob: the ratio is its own then.
void pack_in_fewer_bits(saved_prompt& saved) {
    mnnkv_llama::prompt_packer packer;
    packer.use_fewer_bits();
    const std::size_t much = std::size_t(1) << 40, before = packer.expected(much);
    EXPECT_LT(before, much / 2) << "a prompt larger than the cache in raw has a chance";
    packer.pack(saved);
    for (int i = 0; i < 2000 && packer.expected(much) == before; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_NE(packer.expected(much), before);
}

TEST(LlamaServer, RoundsKTo8BitsAndVTo4WhereAllowed) {
    SEEDED_DICE(random, 2106);
    for (int round = 0; round < 30; ++round) {
        const std::uint32_t cells = 200 + random.below(800);
        saved_prompt saved;
        saved.data.main = state(random, cells);
        spread(random, saved.data.main, cells);
        const bytes before = saved.data.main;
        pack_in_fewer_bits(saved);
        EXPECT_LT(saved.packed.size(), before.size() * 43 / 100);
        ASSERT_TRUE(unpack(saved));
        const bytes& after = saved.data.main;
        ASSERT_EQ(after.size(), before.size());
        const std::size_t head = before.size() - std::size_t(cells) * 256 - 12;
        EXPECT_TRUE(std::equal(before.begin(), before.begin() + std::ptrdiff_t(head), after.begin())) << "tokens";
        for (const bool keys : {true, false}) {
            const std::vector<float> was = numbers(before, cells, keys), is = numbers(after, cells, keys);
            const std::size_t group = keys ? 64 : 32;
            for (std::size_t at = 0; at < was.size(); at += group) {
                float least = was[at], most = was[at], size = 0;
                for (std::size_t i = at; i < at + group; ++i) {
                    least = std::min(least, was[i]), most = std::max(most, was[i]), size = std::max(size, std::fabs(was[i]));
                }
                // Half a step; scales and numbers are rounded to 11 bits, and codes end at their last one.
                const float bound = (keys ? size / 127 : (most - least) / 15) * 0.51f + size / 1000 + 1e-6f;
                for (std::size_t i = at; i < at + group; ++i) {
                    ASSERT_LE(std::fabs(was[i] - is[i]), bound) << (keys ? "K " : "V ") << i << ": " << was[i] << " " << is[i];
                }
            }
        }
    }
}

TEST(LlamaServer, LeavesWhatHasNoFewerBitsAsItIs) {
    SEEDED_DICE(random, 2107);
    // K with a number that is infinite, and V, which is rounded; noise; nothing.
    saved_prompt saved;
    saved.data.main = state(random, 500);
    saved.data.main[saved.data.main.size() - 500 * 256 - 12 + 1] = 0x7c;
    saved.data.main[saved.data.main.size() - 500 * 256 - 12] = 0;
    saved.data.drft = random.noise(3000);
    const saved_prompt before = {{}, {saved.data.main, saved.data.drft}, {}};
    pack_in_fewer_bits(saved);
    ASSERT_TRUE(unpack(saved));
    EXPECT_TRUE(same(saved.data.drft, before.data.drft));
    const std::size_t v = before.data.main.size() - 500 * 128;
    ASSERT_EQ(saved.data.main.size(), before.data.main.size());
    EXPECT_TRUE(std::equal(before.data.main.begin(), before.data.main.begin() + std::ptrdiff_t(v), saved.data.main.begin()));
    EXPECT_FALSE(same(saved.data.main, before.data.main));
}

bytes content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return bytes(std::istreambuf_iterator<char>(file), {});
}

void write(const std::string& path, const bytes& content) {
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
}

/// What llama.cpp reads where it shall read the file at `path`, and whether that is another file.
bytes read_back(const std::string& path, bool& decoded) {
    std::string given = path;
    const mnnkv_llama::raw_slot_file raw(given);
    decoded = given != path;
    return content(given);
}

TEST(LlamaServer, KeepsASlotsFileAsABlobAndReadsBoth) {
    SEEDED_DICE(random, 2106);
    const std::string path = temp_path("slot");
    const bytes file = state(random, 700);
    bool decoded = true;
    write(path, file);
    EXPECT_TRUE(same(read_back(path, decoded), file));
    EXPECT_FALSE(decoded) << "a file of llama.cpp is read as it is";
    const std::size_t size = mnnkv_llama::pack_slot_file(path, file.size());
    EXPECT_LT(size, file.size() * 3 / 4);
    EXPECT_EQ(content(path).size(), size);
    EXPECT_TRUE(same(read_back(path, decoded), file));
    EXPECT_TRUE(decoded);

    // A damaged blob is refused, and llama.cpp gets no numbers of it.
    bytes damaged = content(path);
    damaged[damaged.size() / 2] ^= 1;
    write(path, damaged);
    EXPECT_TRUE(same(read_back(path, decoded), damaged));
    EXPECT_FALSE(decoded);
    std::string given = path;
    EXPECT_TRUE(mnnkv_llama::raw_slot_file(given).failed());
    // So is one that says to be of far more bytes than a cache can shrink.
    const bytes zeros(1 << 20);
    mnnkv_llama::buffer blob;
    ASSERT_TRUE(mnnkv_llama::compress(zeros.data(), zeros.size(), 0, blob));
    write(path, bytes(blob.data(), blob.data() + blob.size()));
    EXPECT_TRUE(mnnkv_llama::raw_slot_file(given).failed());
    std::remove(path.c_str());
}

#ifndef _WIN32
TEST(LlamaServer, TouchesNoOtherFileOfTheFolder) {
    SEEDED_DICE(random, 2108);
    const std::string folder = temp_path("slots");
    ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
    const std::string path = folder + "/a", link = folder + "/link";
    const bytes file = state(random, 700), other(9, 'x');
    const std::vector<std::string> others = {path + ".raw", path + ".mnnkv", path + ".tmp"};
    for (const std::string& each : others) {
        write(each, other);
    }
    write(path, file);
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
    ASSERT_EQ(::symlink("a", link.c_str()), 0);
    EXPECT_LT(mnnkv_llama::pack_slot_file(link, file.size()), file.size());
    {
        std::string first = path, second = path;
        const mnnkv_llama::raw_slot_file one(first), two(second);
        EXPECT_TRUE(same(content(first), file) && same(content(second), file)) << "two readers have a file each";
        EXPECT_NE(first, second);
    }
    struct stat found;
    ASSERT_EQ(::lstat(link.c_str(), &found), 0);
    EXPECT_TRUE(S_ISLNK(found.st_mode)) << "a link stays one";
    ASSERT_EQ(::stat(path.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, 0600u) << "the file keeps its permissions";
    for (const std::string& each : others) {
        EXPECT_TRUE(same(content(each), other)) << each;
        std::remove(each.c_str());
    }
    std::remove(link.c_str());
    std::remove(path.c_str());
    EXPECT_EQ(::rmdir(folder.c_str()), 0) << "nothing else is left";
}
#endif

TEST(LlamaServer, LeavesASlotsFileWhereThereIsNothingToGain) {
    SEEDED_DICE(random, 2107);
    const std::string path = temp_path("slot");
    const bytes noise = random.noise(5000);
    write(path, noise);
    EXPECT_EQ(mnnkv_llama::pack_slot_file(path, 5000), 5000u);
    EXPECT_TRUE(same(content(path), noise));
    const bytes zeros(1 << 20);
    write(path, zeros);
    EXPECT_EQ(mnnkv_llama::pack_slot_file(path, zeros.size()), zeros.size()) << "its blob would not be read";
    EXPECT_TRUE(same(content(path), zeros));
    std::remove(path.c_str());
    EXPECT_EQ(mnnkv_llama::pack_slot_file(path, 7), 7u) << "no file";
    EXPECT_EQ(mnnkv_llama::pack_slot_file(testing::TempDir(), 7), 7u) << "a folder";
    bool decoded = true;
    EXPECT_TRUE(read_back(path, decoded).empty());
    EXPECT_FALSE(decoded);
}

TEST(LlamaServer, ConvertsHalvesInOrder) {
    float last = -HUGE_VALF;
    for (int step = -0x7bff; step <= 0x7bff; ++step) {
        const std::uint16_t half = static_cast<std::uint16_t>(step < 0 ? 0x8000 - step : step);
        const float number = mnnkv_llama::float_of_half(half);
        EXPECT_GT(number, last);
        EXPECT_EQ(mnnkv_llama::half_of_float(number), half);
        // To the nearest one.
        if (step != 0 && std::isfinite(last)) {
            EXPECT_EQ(mnnkv_llama::half_of_float(number - (number - last) * 0.4f), half) << step;
        }
        last = number;
    }
    EXPECT_EQ(mnnkv_llama::float_of_half(0x3c00), 1.0f);
    EXPECT_EQ(mnnkv_llama::float_of_half(0x0001), std::ldexp(1.0f, -24));
    EXPECT_EQ(mnnkv_llama::half_of_float(1e9f), 0x7bff);
}

}  // namespace
