// Saves the sequence of a prompt as a compressed blob, restores it in a second context, and goes on.
//
//   save_restore MODEL.gguf
//
// README.md has the lines that build it.

#include <algorithm>
#include <cstdio>
#include <vector>

#include "mnnkv_llama.hpp"

namespace {

struct context_deleter {
    void operator()(llama_context* context) const { llama_free(context); }
};
using context_owner = std::unique_ptr<llama_context, context_deleter>;

context_owner make_context(llama_model* model) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 1024;
    return context_owner(llama_init_from_model(model, params));
}

/// Decodes tokens and returns the likeliest next one.
llama_token decode(llama_context* context, std::vector<llama_token> tokens) {
    const int count = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
    if (llama_decode(context, llama_batch_get_one(tokens.data(), static_cast<int>(tokens.size()))) != 0) {
        return -1;
    }
    const float* logits = llama_get_logits_ith(context, -1);
    return static_cast<llama_token>(std::max_element(logits, logits + count) - logits);
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) {
        std::fprintf(stderr, "usage: save_restore MODEL.gguf\n");
        return 2;
    }
    llama_backend_init();
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_model* model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    if (model == nullptr) {
        std::fprintf(stderr, "%s: no model that llama.cpp loads\n", arguments[1]);
        return 1;
    }
    bool same = false;
    {
        const context_owner first = make_context(model), second = make_context(model);
        std::vector<llama_token> prompt;
        for (llama_token token = 0; token < 500; ++token) {
            prompt.push_back(token * 7 % 1000);
        }
        llama_token next = decode(first.get(), prompt);

        mnnkv_llama::buffer blob;
        mnnkv_llama::saved report;
        const mnnkv_llama::status saved = mnnkv_llama::save(first.get(), 0, blob, 0, 0, &report);
        const mnnkv_llama::status restored = mnnkv_llama::restore(second.get(), 0, blob.data(), blob.size());
        if (!saved || !restored) {
            std::fprintf(stderr, "save: %s, restore: %s\n", saved.message(), restored.message());
            return 1;
        }
        std::printf("%zu bytes, %zu compressed, layout \"%s\"\n", report.raw_bytes, blob.size(),
                    report.found.form.c_str());
        same = true;
        for (int i = 0; i < 32; ++i) {
            const llama_token expected = decode(first.get(), {next}), got = decode(second.get(), {next});
            same = same && got == expected;
            next = expected;
        }
    }
    llama_model_free(model);
    std::printf("the next 32 tokens are %s\n", same ? "the same" : "NOT the same");
    return same ? 0 : 1;
}
