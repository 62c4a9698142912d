// Chats of five turns through every state of mnn-kv in MNN, and whether their tokens are those of MNN alone. prove.sh builds
// and runs it, with sanitizers.
//
//   mnnkv_prove CONFIG FOLDER BUDGET_MB [THREADS]
//
// CONFIG: a model's config.json. FOLDER: of the files that chats are saved to, which must exist. BUDGET_MB: a budget that does not
// hold the chats raw. THREADS: 1, 2 or 4 alone. Prints a line per chat; the exit status is 1 if one failed, or has other tokens than it must have.

#include <llm/llm.hpp>

#include "mnnkv_mnn_api.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using MNN::Transformer::Llm;
using MNN::Transformer::LlmStatus;

typedef std::vector<int> tokens;

const int turns = 5, answer_tokens = 12, lines = 5;

/// The operations between the turns of a chat.
enum : unsigned { edits = 1, parks = 2, reloads = 4, trims = 8 };

/// A chat, and the one whose tokens it must have; NULL where they may differ.
struct chat {
    const char* name;
    std::string config;
    unsigned does;
    const char* same_as;
};

struct destroy {
    void operator()(Llm* llm) const { Llm::destroy(llm); }
};
typedef std::unique_ptr<Llm, destroy> llm_ptr;

llm_ptr loaded(const std::string& model, const std::string& config, int threads) {
    llm_ptr llm(Llm::createLLM(model));
    const std::string always = R"({"sampler_type": "greedy", "reuse_kv": true, "chunk": 64, "thread_num": )";
    if (llm && llm->set_config(always + std::to_string(threads) + "}") && llm->set_config(config) && llm->load()) {
        return llm;
    }
    return llm_ptr();
}

std::string prompt(int turn) {
    std::string text = "Report " + std::to_string(turn) + ". ";
    for (int line = 0; line < lines; ++line) {
        text += "The depot in sector " + std::to_string(turn * lines + line) + " holds " + std::to_string(700 + 37 * line) +
                " crates and is guarded by " + std::to_string(2 + line) + " men. ";
    }
    return text + "The next report says that";
}

/// The model's tokens of all turns; empty if something failed, which is printed.
tokens run(const std::string& model, const chat& how, const std::string& file, double budget, int threads) {
    llm_ptr llm = loaded(model, how.config, threads);
    const auto failed = [&](const char* what, int turn) {
        std::printf("%s: turn %d: %s failed\n", how.name, turn, what);
        return tokens();
    };
    tokens all;
    for (int turn = 0; turn < turns; ++turn) {
        if (!llm) {
            return failed("load", turn);
        }
        llm->response(llm->tokenizer_encode(prompt(turn)), nullptr, nullptr, answer_tokens);
        const MNN::Transformer::LlmContext& context = *llm->getContext();
        if (context.output_tokens.empty() || context.status == LlmStatus::INTERNAL_ERROR) {
            return failed("the answer", turn);
        }
        if (how.config != "{}" && mnnkv_mnn::metrics(*llm).empty()) {
            return failed("to switch mnn-kv on", turn);
        }
        all.insert(all.end(), context.output_tokens.begin(), context.output_tokens.end());
        if ((how.does & edits) != 0 && turn % 2 == 1) {
            llm->eraseHistory(60, 90);
        }
        if ((how.does & parks) != 0) {
            // As an application does when a message comes: parking ends early, or is done.
            std::thread message([&] { (void)mnnkv_mnn::interrupt(*llm); });
            (void)mnnkv_mnn::park(*llm, 1 + turn);
            message.join();
            if (!mnnkv_mnn::park(*llm)) {
                return failed("park", turn);
            }
        }
        if ((how.does & trims) != 0 && !mnnkv_mnn::trim(*llm, turn % 2 == 0 ? 0 : budget)) {
            return failed("trim", turn);
        }
        if ((how.does & reloads) != 0) {
            if (!mnnkv_mnn::save_chat(*llm, file, turn == 0)) {
                return failed("save", turn);
            }
            llm.reset();
            llm = loaded(model, how.config, threads);
            if (llm && !mnnkv_mnn::load_chat(*llm, file)) {
                return failed("load of the chat", turn);
            }
        }
    }
    return all;
}

std::vector<chat> chats(const std::string& folder, double budget) {
    const std::string lossless = R"({"kv_lossless_enable": true, "kv_lossless_runtime_enable": true,
        "kv_lossless_runtime_mode": "store", "kv_lossless_front_n": 1000, "kv_lossless_block_tokens": 32,
        "kv_lossless_hot_recent_tokens": 32})";
    const std::string quantised = R"({"kv_quant": "k8v4"})";
    const std::string megabytes = std::to_string(budget);
    const std::string file = R"({"kv_memory_mb": )" + megabytes + R"(, "kv_memory_file": ")" + folder + R"(/blocks.kv"})";
    const std::string evicting = R"({"kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_recent_tokens": 64,
        "kv_h2o_trigger_min_tokens": 128)";
    return {
        {"MNN", "{}", 0, nullptr},
        {"MNN, edited", "{}", edits, nullptr},
        {"parked", R"({"kv_chat_enable": true})", parks, "MNN"},
        {"parked, saved, loaded", R"({"kv_chat_enable": true})", parks | reloads, "MNN"},
        {"stored without loss", lossless, 0, "MNN"},
        {"stored without loss, edited", lossless, edits, "MNN, edited"},
        {"a large budget", R"({"kv_memory_mb": 100000})", parks, "MNN"},
        {"8 and 4 bits", quantised, 0, nullptr},
        {"8 and 4 bits, parked, saved, loaded", quantised, parks | reloads, "8 and 4 bits"},
        {"8 and 4 bits, edited", quantised, edits | parks, nullptr},
        {"a budget and a file", file, edits | trims, nullptr},
        {"a budget and a file, parked, saved, loaded", file, parks | reloads | trims, nullptr},
        {"a budget", R"({"kv_memory_mb": )" + megabytes + "}", edits | parks | trims, nullptr},
        {"evicted", evicting + "}", edits | parks | reloads, nullptr},
    };
}

}  // namespace

int main(int count, char** arguments) {
    const int alone = count == 5 ? std::atoi(arguments[4]) : 0;
    const bool is_right = count == 4 || (count == 5 && (alone == 1 || alone == 2 || alone == 4));
    if (!is_right || std::atof(arguments[3]) <= 0) {
        std::fprintf(stderr, "usage: mnnkv_prove CONFIG FOLDER BUDGET_MB [THREADS]\n");
        return 2;
    }
    const std::string folder = arguments[2];
    const double budget = std::atof(arguments[3]);
    bool sound = true;
    for (const int threads : {1, 2, 4}) {
        if (alone != 0 && alone != threads) {
            continue;
        }
        std::map<std::string, tokens> known;
        for (const chat& each : chats(folder, budget)) {
            const auto begin = std::chrono::steady_clock::now();
            const tokens all = run(arguments[1], each, folder + "/chat.kv", budget, threads);
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
            known[each.name] = all;
            const bool same = each.same_as == nullptr || all == known[each.same_as];
            const bool passed = !all.empty() && same;
            sound = passed && sound;
            std::printf("%s  %d threads, %s: %zu tokens%s%s, %.0f s\n", passed ? "pass" : "FAIL", threads, each.name, all.size(),
                        each.same_as == nullptr ? "" : same ? ", the same as " : ", other than ",
                        each.same_as == nullptr ? "" : each.same_as, took.count());
            std::fflush(stdout);
        }
    }
    return sound ? 0 : 1;
}
