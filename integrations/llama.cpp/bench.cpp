// Bytes per cached token, and the least time of nine to save and restore, for each type of cache; beside the raw state,
// zstd-3 and lz4.
//
//   bench MODEL.gguf TOKENS [IDS.u16]      tokens: of the file, 16-bit numbers, or arbitrary ones
//
// Each restored sequence goes on for 32 tokens with the likeliest one, in a new context. Their logits must be those of
// the context that was never interrupted, bit for bit. README.md has the lines that build it.

#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <vector>

#include "mnnkv_llama.hpp"

namespace {

struct context_deleter {
    void operator()(llama_context* context) const { llama_free(context); }
};
using context_owner = std::unique_ptr<llama_context, context_deleter>;

struct cache_kind {
    const char* name;
    ggml_type type;
    bool flash;
};

/// The parameter has two names, by version.
template <class Params>
auto set_flash(Params& params, bool flash, int) -> decltype(params.flash_attn = flash, void()) {
    params.flash_attn = flash;
}
template <class Params>
auto set_flash(Params& params, bool flash, long) -> decltype(params.flash_attn_type, void()) {
    params.flash_attn_type = static_cast<decltype(params.flash_attn_type)>(flash ? 1 : 0);
}

context_owner make_context(llama_model* model, const cache_kind& kind, std::size_t tokens) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>((tokens + 64 + 255) / 256 * 256);
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = 2;
    params.type_k = kind.type;
    // A quantised V needs flash attention.
    params.type_v = kind.flash ? kind.type : GGML_TYPE_F16;
    set_flash(params, kind.flash, 0);
    return context_owner(llama_init_from_model(model, params));
}

/// Decodes tokens; returns the logits of the last one.
std::vector<float> decode(llama_context* context, std::vector<llama_token> tokens) {
    const int count = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
    for (std::size_t at = 0; at < tokens.size(); at += 512) {
        const int len = static_cast<int>(std::min<std::size_t>(512, tokens.size() - at));
        if (llama_decode(context, llama_batch_get_one(tokens.data() + at, len)) != 0) {
            std::fprintf(stderr, "llama_decode failed\n");
            std::exit(1);
        }
    }
    const float* logits = llama_get_logits_ith(context, -1);
    return std::vector<float>(logits, logits + count);
}

llama_token likeliest(const std::vector<float>& logits) {
    return static_cast<llama_token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Milliseconds on the clock, and of all cores.
struct cost {
    double clock, cores;
    cost operator+(const cost& other) const { return {clock + other.clock, cores + other.cores}; }
};

/// The least of nine runs.
cost measure(const std::function<void()>& body) {
    cost least = {1e30, 1e30};
    for (int i = 0; i < 9; ++i) {
        const auto start = std::chrono::steady_clock::now();
        const std::clock_t used = std::clock();
        body();
        const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
        least.clock = std::min(least.clock, time.count());
        least.cores = std::min(least.cores, 1e3 * double(std::clock() - used) / CLOCKS_PER_SEC);
    }
    return least;
}

void require(const mnnkv_llama::status& status, const char* what) {
    if (!status) {
        std::fprintf(stderr, "%s: %s\n", what, status.message());
        std::exit(1);
    }
}

void print(const cache_kind& kind, const char* way, std::size_t bytes, std::size_t raw, std::size_t tokens,
           const cost& save, const cost& restore, const char* tokens_after) {
    std::printf("| %s | %s | %s | %.1f | %.3f | %.1f (%.1f) | %.1f (%.1f) | %s |\n", kind.name,
                kind.flash ? "on" : "off", way, double(bytes) / double(tokens), double(bytes) / double(raw),
                save.clock, save.cores, restore.clock, restore.cores, tokens_after);
    std::fflush(stdout);
}

void run(llama_model* model, const cache_kind& kind, const std::vector<llama_token>& prompt) {
    const context_owner first = make_context(model, kind, prompt.size());
    if (!first) {
        std::printf("| %s | %s | not in this version | | | | | |\n", kind.name, kind.flash ? "on" : "off");
        return;
    }
    const llama_token start = likeliest(decode(first.get(), prompt));

    std::vector<unsigned char> raw(llama_state_seq_get_size(first.get(), 0)), back(raw.size());
    const cost get = measure([&] { llama_state_seq_get_data(first.get(), raw.data(), raw.size(), 0); });
    const context_owner other = make_context(model, kind, prompt.size());
    const cost set = measure([&] { llama_state_seq_set_data(other.get(), raw.data(), raw.size(), 0); });
    print(kind, "raw", raw.size(), raw.size(), prompt.size(), get, set, "");

    std::vector<unsigned char> packed(ZSTD_compressBound(raw.size()));
    std::size_t len = 0;
    const cost squeeze = measure([&] { len = ZSTD_compress(packed.data(), packed.size(), raw.data(), raw.size(), 3); });
    const cost expand = measure([&] { ZSTD_decompress(back.data(), back.size(), packed.data(), len); });
    print(kind, "zstd-3, one thread", len, raw.size(), prompt.size(), get + squeeze, set + expand, "");

    const int size = static_cast<int>(raw.size());
    std::vector<char> quick(static_cast<std::size_t>(LZ4_compressBound(size)));
    const char* const from = reinterpret_cast<const char*>(raw.data());
    int quick_len = 0;
    const cost press = measure([&] {
        quick_len = LZ4_compress_default(from, quick.data(), size, static_cast<int>(quick.size()));
    });
    const cost unpress = measure([&] {
        LZ4_decompress_safe(quick.data(), reinterpret_cast<char*>(back.data()), quick_len, size);
    });
    print(kind, "lz4, one thread", static_cast<std::size_t>(quick_len), raw.size(), prompt.size(), get + press,
          set + unpress, "");

    struct blob_of {
        std::uint32_t threads;
        mnnkv_llama::buffer blob;
        cost save, restore;
    };
    std::vector<blob_of> blobs;
    mnnkv_llama::saved report;
    for (const std::uint32_t threads : {1u, 0u}) {
        blob_of now = {threads, mnnkv_llama::buffer(), {0, 0}, {0, 0}};
        now.save = measure([&] {
            require(mnnkv_llama::save(first.get(), 0, now.blob, 0, threads, &report), "save");
        });
        now.restore = measure([&] {
            require(mnnkv_llama::restore(other.get(), 0, now.blob.data(), now.blob.size()), "restore");
        });
        blobs.push_back(std::move(now));
    }

    std::vector<std::vector<float>> expected;
    llama_token next = start;
    for (int i = 0; i < 32; ++i) {
        expected.push_back(decode(first.get(), {next}));
        next = likeliest(expected.back());
    }
    for (const blob_of& now : blobs) {
        const context_owner fresh = make_context(model, kind, prompt.size());
        require(mnnkv_llama::restore(fresh.get(), 0, now.blob.data(), now.blob.size()), "restore");
        bool same = true;
        next = start;
        for (const std::vector<float>& logits : expected) {
            const std::vector<float> got = decode(fresh.get(), {next});
            same = same && std::memcmp(got.data(), logits.data(), got.size() * sizeof(float)) == 0;
            next = likeliest(got);
        }
        const std::string way = std::string("mnn-kv") + (now.threads == 1 ? ", one thread" : "") +
                                (report.found.form.empty() ? ", opaque" : "");
        print(kind, way.c_str(), now.blob.size(), raw.size(), prompt.size(), now.save, now.restore,
              same ? "same" : "NOT the same");
        if (!same) {
            std::exit(1);
        }
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 3) {
        std::fprintf(stderr, "usage: bench MODEL.gguf TOKENS [IDS.u16]\n");
        return 2;
    }
    llama_backend_init();
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_model* model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    if (model == nullptr) {
        std::fprintf(stderr, "%s: no model that llama.cpp loads\n", arguments[1]);
        return 1;
    }
    const std::uint32_t vocabulary = static_cast<std::uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
    std::vector<llama_token> prompt;
    std::ifstream ids(count > 3 ? arguments[3] : "", std::ios::binary);
    std::uint32_t state = 1;
    for (int i = 0; i < std::atoi(arguments[2]); ++i) {
        state = state * 1664525u + 1013904223u;
        unsigned char id[2] = {static_cast<unsigned char>(state >> 24), static_cast<unsigned char>(state >> 16)};
        ids.read(reinterpret_cast<char*>(id), 2);
        prompt.push_back(static_cast<llama_token>((id[0] + 256u * id[1]) % vocabulary));
    }
    std::printf("%zu tokens, llama.cpp: %s\n\n", prompt.size(), llama_print_system_info());
    std::printf("| cache | flash attention | | bytes per token | of raw | save, ms (of all cores) | "
                "restore, ms (of all cores) | next 32 tokens |\n");
    std::printf("|---|---|---|---|---|---|---|---|\n");
    const cache_kind kinds[] = {{"f16", GGML_TYPE_F16, false}, {"f16", GGML_TYPE_F16, true},
                                {"K q8_0, V f16", GGML_TYPE_Q8_0, false}, {"q8_0", GGML_TYPE_Q8_0, true},
                                {"K q4_0, V f16", GGML_TYPE_Q4_0, false}, {"q4_0", GGML_TYPE_Q4_0, true}};
    for (const cache_kind& kind : kinds) {
        run(model, kind, prompt);
    }
    llama_model_free(model);
    return 0;
}
