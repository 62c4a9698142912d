// `llm_bench perplexity`: mnnkv_perplexity.hpp with MNN's engine.

#ifndef MNNKV_MNN_PERPLEXITY_HPP
#define MNNKV_MNN_PERPLEXITY_HPP

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "llm/llm.hpp"
#include "mnnkv_perplexity.hpp"

namespace mnnkv_mnn {

class llm_decoder : public mnnkv_host::decoder {
public:
    bool load(const std::string& config, const std::string& settings) override {
        llm_.reset(MNN::Transformer::Llm::createLLM(config));
        if (!llm_) {
            return false;
        }
        llm_->set_config("{\"async\": false}");
        return (settings.empty() || llm_->set_config(settings)) && llm_->load();
    }

    std::vector<int> encode(const std::string& text) override { return llm_->tokenizer_encode(text); }

    const float* forward(const std::vector<int>& tokens, std::size_t& vocabulary) override {
        logits_ = llm_->forward(tokens);
        const auto* const info = logits_ == nullptr ? nullptr : logits_->getInfo();
        if (info == nullptr || info->dim.empty() || info->dim.back() <= 0) {
            return nullptr;
        }
        vocabulary = static_cast<std::size_t>(info->dim.back());
        // One row, or all of the tokens'. Other numbers include padding.
        const std::size_t rows = static_cast<std::size_t>(info->size) / vocabulary;
        const float* const all = logits_->readMap<float>();
        return all == nullptr || (rows != 1 && rows != tokens.size()) ? nullptr : all + (rows - 1) * vocabulary;
    }

    void reset() override { llm_->reset(); }
    std::string config() override { return llm_->dump_config(); }

private:
    std::unique_ptr<MNN::Transformer::Llm> llm_;
    MNN::Express::VARP logits_;
};

/// The first argument is "perplexity".
inline bool asks_perplexity(int argc, char** argv) { return argc > 1 && std::strcmp(argv[1], "perplexity") == 0; }

inline int perplexity(int argc, char** argv) {
    llm_decoder engine;
    return mnnkv_host::perplexity_run(engine).main(argc - 2, argv + 2);
}

}  // namespace mnnkv_mnn

#endif  // MNNKV_MNN_PERPLEXITY_HPP
