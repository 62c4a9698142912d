// The adapter for llama.cpp: buffers of every known layout, written here by the facts of integrations/llama.cpp.

#include "mnnkv_llama.hpp"
#include "refusal.hpp"

namespace {

using namespace support;

enum ggml : std::int32_t { f32 = 0, f16 = 1, q4_0 = 2, q5_1 = 7, q8_0 = 8, bf16 = 30, unknown = 99 };

/// Bytes and elements of a block, dtype, bytes of its scales; one element where there is no block.
struct type_facts {
    std::uint32_t bytes, elements, dtype;
    std::uint16_t scale;
};
type_facts facts(ggml type) {
    switch (type) {
        case f32: return {4, 1, MNNKV_DTYPE_F32, 0};
        case f16: return {2, 1, MNNKV_DTYPE_F16, 0};
        case bf16: return {2, 1, MNNKV_DTYPE_BF16, 0};
        case q4_0: return {18, 32, MNNKV_DTYPE_F16, 2};
        case q5_1: return {24, 32, MNNKV_DTYPE_F16, 4};
        case q8_0: return {34, 32, MNNKV_DTYPE_F16, 2};
        default: return {10, 5, 0, 0};
    }
}

/// A cache of a model.
struct cache {
    ggml key = f16, value = f16;
    bool is_transposed = false, has_streams = true, has_values = true;
    std::uint32_t place_bytes = 0, sequences = 1, layers = 3, width = 64;
    std::vector<std::uint32_t> cells = {20};
};

struct writer {
    bytes out;
    std::vector<mnnkv_state_tensor> tensors;
    dice random{7};

    template <class T>
    void put(T number) {
        const auto* first = reinterpret_cast<const std::uint8_t*>(&number);
        out.insert(out.end(), first, first + sizeof number);
    }

    void put_tensor(ggml type, std::uint64_t rows, std::uint64_t row_bytes) {
        if (rows * row_bytes == 0) {
            return;
        }
        mnnkv_state_tensor tensor = {};
        const type_facts fact = facts(type);
        tensor.dtype = fact.dtype;
        tensor.block_bytes = static_cast<std::uint16_t>(fact.elements > 1 ? fact.bytes : 0);
        tensor.scale_bytes = fact.scale;
        tensor.offset = out.size();
        tensor.bytes = rows * row_bytes;
        tensors.push_back(tensor);
        const bytes words = random.noise(rows * row_bytes);
        out.insert(out.end(), words.begin(), words.end());
    }

    void put_rows(ggml type, std::uint32_t cells, std::uint32_t width) {
        const std::uint64_t row_bytes = std::uint64_t{width} / facts(type).elements * facts(type).bytes;
        put(std::int32_t{type});
        put(row_bytes);
        put_tensor(type, cells, row_bytes);
    }

    void put_cells(const cache& made, std::uint32_t count) {
        put(count);
        for (std::uint32_t cell = 0; cell < count; ++cell) {
            put(std::int32_t(cell + 5));
            put(made.sequences);
            out.insert(out.end(), made.place_bytes, std::uint8_t(cell));
            for (std::uint32_t i = 0; i < made.sequences; ++i) {
                put(std::int32_t(i));
            }
        }
    }

    writer& with(const cache& made) {
        if (made.has_streams) {
            put(std::uint32_t(made.cells.size()));
        }
        for (const std::uint32_t count : made.cells) {
            if (count == 0 && made.has_streams) {
                put(count);
                continue;
            }
            put_cells(made, count);
            put(std::uint32_t{made.is_transposed});
            put(made.layers);
            for (std::uint32_t layer = 0; layer < made.layers; ++layer) {
                put_rows(made.key, count, made.width);
            }
            for (std::uint32_t layer = 0; layer < made.layers && made.has_values; ++layer) {
                if (made.is_transposed) {
                    put(std::int32_t{made.value});
                    put(facts(made.value).bytes);
                    put(made.width);
                    put_tensor(made.value, made.width, std::uint64_t{facts(made.value).bytes} * count);
                } else {
                    put_rows(made.value, count, made.width);
                }
            }
        }
        return *this;
    }

    /// One cell of a recurrent model, which has a state in two of its layers.
    writer& with_recurrent() {
        cache made;
        made.sequences = 0;
        put_cells(made, 1);
        put(std::uint32_t{0});
        put(std::uint32_t{5});
        for (int i = 0; i < 4; ++i) {
            put_rows(f32, 1, 100);
        }
        return *this;
    }
};

bytes round_trip(const bytes& buffer, mnnkv_llama::layout* found = nullptr) {
    mnnkv_llama::buffer blob, back;
    EXPECT_TRUE(ok(mnnkv_llama::compress(buffer.data(), buffer.size(), 0, blob, found).code()));
    EXPECT_TRUE(ok(mnnkv_llama::decompress(blob.data(), blob.size(), buffer.size(), back).code()));
    return bytes(back.data(), back.data() + back.size());
}

void expect_found(const writer& made, const std::string& form) {
    mnnkv_llama::layout found;
    EXPECT_TRUE(same(round_trip(made.out, &found), made.out));
    EXPECT_EQ(found.form, form);
    ASSERT_EQ(found.tensors.size(), made.tensors.size());
    for (std::size_t i = 0; i < made.tensors.size(); ++i) {
        EXPECT_EQ(std::memcmp(&found.tensors[i], &made.tensors[i], sizeof made.tensors[i]), 0) << "tensor " << i;
    }
}

template <class Change>
cache changed(Change change) {
    cache made;
    change(made);
    return made;
}

TEST(LlamaLayout, EveryKnownLayoutIsFoundToTheLastByte) {
    const cache plain;
    expect_found(writer().with(plain), "streams");
    for (const ggml type : {f32, bf16, q4_0, q5_1, q8_0}) {
        expect_found(writer().with(changed([&](cache& c) { c.key = c.value = type; })), "streams");
    }
    const cache turned = changed([](cache& c) { c.is_transposed = true; });
    expect_found(writer().with(turned), "streams");
    const cache mixed = changed([](cache& c) { c.is_transposed = true, c.key = q8_0, c.value = bf16; });
    expect_found(writer().with(mixed), "streams");
    expect_found(writer().with(changed([](cache& c) { c.cells = {0, 7, 0, 1}, c.sequences = 4; })), "streams");
    expect_found(writer().with(changed([](cache& c) { c.place_bytes = 8; })), "streams");
    expect_found(writer().with(changed([](cache& c) { c.place_bytes = 12; })), "streams");
    expect_found(writer().with(changed([](cache& c) { c.has_values = false; })), "streams-k");
    const cache old = changed([](cache& c) { c.has_streams = false, c.sequences = 0; });
    expect_found(writer().with(old), "cells");
    expect_found(writer().with(changed([](cache& c) { c.has_streams = false, c.is_transposed = true; })), "cells");
    // A sliding window, and recurrent layers.
    expect_found(writer().with(plain).with(changed([](cache& c) { c.cells = {6}, c.layers = 9; })), "streams streams");
    expect_found(writer().with(old).with(old), "cells cells");
    expect_found(writer().with_recurrent(), "recurrent");
    expect_found(writer().with(turned).with_recurrent(), "streams recurrent");
}

TEST(LlamaLayout, HeadsOfSequencesContextsAndFilesAreSkipped) {
    writer buffer, sequence, context, both, later;
    buffer.put(std::uint32_t{0xaf143cd8});
    buffer.put(std::int32_t{7});
    expect_found(buffer.with(cache()), "streams");
    for (const std::uint32_t number : {0x67677371u, 2u, 3u, 11u, 12u, 13u}) {
        sequence.put(number);
    }
    expect_found(sequence.with(cache()), "streams");
    for (const std::uint32_t number : {0x6767736eu, 9u, 1u, 11u}) {
        both.put(number);
    }
    for (writer* made : {&context, &both}) {
        made->put(std::uint32_t{5});
        for (const char letter : std::string("llama")) {
            made->put(letter);
        }
        made->put(std::uint32_t{1});
        made->put(std::int32_t{19});
        made->put(std::uint64_t{100});
        made->out.resize(made->out.size() + 400, 3);
        made->put(std::uint64_t{0});
        expect_found(made->with(cache()), "streams");
    }
    for (const std::uint32_t number : {0x6767736eu, 10u, 0u, 4u, 0x74736574u}) {
        later.put(number);
    }
    expect_found(later.with(cache()), "streams");
}

TEST(LlamaLayout, ABufferThatIsNotUnderstoodIsCompressedAsOpaqueBytes) {
    const bytes good = writer().with(cache()).out;
    std::vector<bytes> others = {{}, {1}, bytes(100000, 7), dice(3).noise(5001), good, good};
    others[4].push_back(0);
    others[5].pop_back();
    others.push_back(writer().with(changed([](cache& c) { c.key = unknown; })).out);
    others.push_back(writer().with(changed([](cache& c) { c.value = q8_0, c.is_transposed = true; })).out);
    others.push_back(writer().with(changed([](cache& c) { c.layers = 0; })).out);
    for (const bytes& buffer : others) {
        mnnkv_llama::layout found;
        EXPECT_TRUE(same(round_trip(buffer, &found), buffer));
        EXPECT_TRUE(found.form.empty() && found.tensors.empty()) << found.form;
    }
}

TEST(LlamaLayout, NoNumberInABufferLeadsOutOfIt) {
    const bytes good = writer().with(cache()).with(changed([](cache& c) { c.is_transposed = true; })).out;
    SEEDED_DICE(random, 5);
    for (int i = 0; i < 2000; ++i) {
        bytes buffer = good;
        const std::uint32_t numbers[] = {0, 1, 20, 1u << 16, 1u << 31, UINT32_MAX};
        for (std::uint32_t left = random.between(1, 3); left > 0; --left) {
            std::memcpy(&buffer[random.below(std::uint32_t(good.size() - 4))], &numbers[random.below(6)], 4);
        }
        const mnnkv_llama::layout found = mnnkv_llama::find(buffer.data(), buffer.size());
        EXPECT_GT(mnnkv_state_bound(buffer.size(), found.tensors.data(), found.tensors.size()), 0u);
    }
}

TEST(LlamaSequence, ASavedSequenceComesBackUnderAnotherId) {
    llama_context context;
    context.sequences[{2, 0}] = writer().with(cache()).out;
    context.sequences[{2, 1}] = {9, 9};
    mnnkv_llama::buffer blob, window;
    mnnkv_llama::saved report;
    ASSERT_TRUE(ok(mnnkv_llama::save(&context, 2, blob, 0, 1, &report).code()));
    ASSERT_TRUE(ok(mnnkv_llama::save(&context, 2, window, LLAMA_STATE_SEQ_FLAGS_SWA_ONLY).code()));
    EXPECT_EQ(report.raw_bytes, (context.sequences[{2, 0}].size()));
    EXPECT_EQ(report.found.form, "streams");
    ASSERT_TRUE(ok(mnnkv_llama::restore(&context, 4, blob.data(), blob.size()).code()));
    ASSERT_TRUE(
        ok(mnnkv_llama::restore(&context, 4, window.data(), window.size(), LLAMA_STATE_SEQ_FLAGS_SWA_ONLY).code()));
    for (const std::uint32_t flags : {0u, 1u}) {
        EXPECT_TRUE(same(context.sequences[{4, flags}], context.sequences[{2, flags}]));
    }
}

TEST(LlamaSequence, FailuresChangeNoSequenceAndNoBlob) {
    llama_context context;
    context.sequences[{0, 0}] = writer().with(cache()).out;
    const bytes before = context.sequences[{0, 0}];
    mnnkv_llama::buffer blob;
    ASSERT_TRUE(ok(mnnkv_llama::save(&context, 0, blob).code()));
    const bytes saved(blob.data(), blob.data() + blob.size());
    (void)mnnkv_state_decoded_size(nullptr, 0, nullptr);
    const auto expect_failed = [](const mnnkv_llama::status& done, mnnkv_status code, const std::string& why) {
        EXPECT_EQ(done.code(), code);
        EXPECT_EQ(done.message(), why) << "not of the failure before";
    };
    expect_failed(mnnkv_llama::save(&context, 1, blob), MNNKV_NOT_FOUND, "llama.cpp returned no state");
    EXPECT_TRUE(same(bytes(blob.data(), blob.data() + blob.size()), saved));
    expect_failed(mnnkv_llama::restore(&context, 0, blob.data(), blob.size(), 0, before.size() - 1),
                  MNNKV_BUFFER_TOO_SMALL, "the state in the blob is larger than max_size");
    bytes damaged = saved;
    damaged[damaged.size() / 2] ^= 1;
    EXPECT_EQ(mnnkv_llama::restore(&context, 0, damaged.data(), damaged.size()).code(), MNNKV_CORRUPT);
    context.refuses = true;
    expect_failed(mnnkv_llama::restore(&context, 0, blob.data(), blob.size()), MNNKV_STALE,
                  "llama.cpp refused the state: another model or type of cache, or no room");
    EXPECT_TRUE(same(context.sequences[{0, 0}], before));
}

}  // namespace
