// Chats of five turns through every state of mnn-kv in MNN, and whether their tokens are those of MNN alone. prove.sh builds
// and runs it, with sanitizers.
//
//   mnnkv_prove CONFIG FOLDER BUDGET_MB [THREADS]
//
// CONFIG: a model's config.json. FOLDER: of the files that chats are saved to, which must exist. BUDGET_MB: a budget that does not
// hold the chats raw. THREADS: 1, 2 or 4 alone. Prints a line per chat; the exit status is 1 if one failed, or has other tokens
// than it must have. With two more arguments it is a process of such a run, for one turn of a chat.

#include <llm/llm.hpp>

#include "mnnkv_mnn_api.hpp"

#include <MNN/expr/Expr.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

using MNN::Transformer::Llm;
using MNN::Transformer::LlmStatus;

typedef std::vector<int> tokens;

const int turns = 5, answer_tokens = 12, lines = 5;

/// The operations between the turns of a chat. saves: it is saved, and loaded again by the same Llm, which frees its caches.
/// reloads: by another one. keeps: it is saved, and goes on. resumes: each turn has a process, which goes on by itself, since
/// kv_memory_file is the file. dies: the process saves, goes on with other words, and ends at once: these must be gone. The bits of
/// the logits of keeps and dies count as tokens.
enum : unsigned { edits = 1, parks = 2, saves = 4, reloads = 8, resumes = 16, trims = 32, keeps = 64, dies = 128 };

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

/// A number of the bits of the last logits.
int bits_of(Llm& llm) {
    std::uint32_t sum = 2166136261u;
    for (const MNN::Express::VARP& output : llm.getOutputs()) {
        const std::uint32_t* const words = output->readMap<std::uint32_t>();
        for (std::size_t at = 0; at < output->getInfo()->size; ++at) {
            sum = (sum ^ words[at]) * 16777619u;
        }
    }
    return static_cast<int>(sum & 0x7fffffff);
}

int print_turn(const tokens& all);

/// The model's tokens of some turns; empty if something failed, which is printed.
tokens run(const std::string& model, const chat& how, const std::string& file, double budget, int threads, int first = 0,
           int end = turns) {
    llm_ptr llm = loaded(model, how.config, threads);
    const auto failed = [&](const char* what, int turn) {
        std::printf("%s: turn %d: %s failed\n", how.name, turn, what);
        return tokens();
    };
    tokens all;
    for (int turn = first; turn < end; ++turn) {
        if (!llm) {
            return failed("load", turn);
        }
        llm->response(llm->tokenizer_encode(prompt(turn)), nullptr, nullptr, answer_tokens);
        const MNN::Transformer::LlmContext& context = *llm->getContext();
        if (context.output_tokens.empty() || context.status == LlmStatus::INTERNAL_ERROR) {
            return failed("the answer", turn);
        }
        if (how.config != "{}" && mnnkv_mnn::metrics(*llm).find("\"does\"") == std::string::npos) {
            return failed("to switch mnn-kv on", turn);
        }
        all.insert(all.end(), context.output_tokens.begin(), context.output_tokens.end());
        if ((how.does & (keeps | dies)) != 0) {
            all.push_back(bits_of(*llm));
        }
        if ((how.does & edits) != 0 && turn % 2 == 1) {
            llm->eraseHistory(60, 90);
        }
        if ((how.does & parks) != 0 && !mnnkv_mnn::park(*llm)) {
            return failed("park", turn);
        }
        if ((how.does & trims) != 0 && !mnnkv_mnn::trim(*llm, turn % 2 == 0 ? 0 : budget)) {
            return failed("trim", turn);
        }
        if ((how.does & (saves | reloads | resumes | keeps)) != 0 && !mnnkv_mnn::save_chat(*llm, file)) {
            return failed("save", turn);
        }
        if ((how.does & dies) != 0) {
            print_turn(all);
            std::fflush(stdout);
            llm->response(llm->tokenizer_encode(prompt(turns + turn)), nullptr, nullptr, answer_tokens);
            std::_Exit(0);
        }
        if ((how.does & reloads) != 0) {
            llm.reset();
            llm = loaded(model, how.config, threads);
        }
        if ((how.does & (saves | reloads)) != 0 && (!llm || !mnnkv_mnn::load_chat(*llm, file))) {
            return failed("load of the chat", turn);
        }
    }
    return all;
}

/// The tokens of all turns, each by a process of its own; empty if one failed. `command` lacks the number of the turn.
tokens run_apart(const std::string& command) {
    tokens all;
    for (int turn = 0; turn < turns; ++turn) {
        std::FILE* const output = popen((command + std::to_string(turn)).c_str(), "r");
        char line[4096];
        while (output != nullptr && std::fgets(line, sizeof line, output) != nullptr) {
            int token = 0;
            if (std::sscanf(line, "token %d", &token) == 1) {
                all.push_back(token);
            } else {
                std::fputs(line, stdout);
            }
        }
        if (output == nullptr || pclose(output) != 0) {
            return tokens();
        }
    }
    return all;
}

/// A turn alone, whose tokens are printed for run_apart.
int print_turn(const tokens& all) {
    for (const int token : all) {
        std::printf("token %d\n", token);
    }
    return all.empty() ? 1 : 0;
}

std::vector<chat> chats(const std::string& folder, double budget) {
    const std::string lossless = R"({"kv_lossless_enable": true, "kv_lossless_runtime_enable": true,
        "kv_lossless_runtime_mode": "store", "kv_lossless_front_n": 1000, "kv_lossless_block_tokens": 32,
        "kv_lossless_hot_recent_tokens": 32})";
    const std::string quantised = R"({"kv_quant": "k8v4"})";
    const std::string megabytes = std::to_string(budget), at = R"(, "kv_memory_file": ")" + folder;
    const std::string file = R"({"kv_memory_mb": )" + megabytes + at + R"(/blocks.kv"})";
    // Bits do not depend on how fast the disk is.
    const std::string own = R"({"kv_memory_mb": )" + megabytes + at + R"(/chat.kv", "kv_memory_wait_us": 10000000})";
    const std::string evicting = R"({"kv_h2o_enable": true, "kv_h2o_layer_start": 0, "kv_h2o_recent_tokens": 64,
        "kv_h2o_trigger_min_tokens": 128)";
    return {
        {"MNN", "{}", 0, nullptr},
        {"MNN, edited", "{}", edits, nullptr},
        {"saved and loaded", R"({"kv_chat_enable": true})", saves, "MNN"},
        {"saved, loaded by another", R"({"kv_chat_enable": true})", reloads, "MNN"},
        {"stored without loss", lossless, 0, "MNN"},
        {"stored without loss, edited", lossless, edits, "MNN, edited"},
        {"a large budget, parked, resumed", R"({"kv_memory_mb": 100000)" + at + R"(/chat.kv"})", parks | resumes, "MNN"},
        {"8 and 4 bits", quantised, 0, nullptr},
        {"8 and 4 bits, saved, loaded by another", quantised, reloads, "8 and 4 bits"},
        {"8 and 4 bits, edited", quantised, edits | saves, nullptr},
        {"a budget and a file, parked", file, edits | parks | trims, nullptr},
        {"a budget and a file, resumed", own, parks | resumes | trims, nullptr},
        {"a budget and a file, saved", own, keeps, nullptr},
        {"a budget and a file, killed after each save", own, resumes | dies, "a budget and a file, saved"},
        {"a budget, saved and loaded", R"({"kv_memory_mb": )" + megabytes + "}", edits | saves | trims, nullptr},
        {"evicted", evicting + "}", edits | reloads, nullptr},
    };
}

/// Layers have sliding windows: mnn-kv does not evict from such a model.
bool has_windows(const std::string& model) {
    const llm_ptr llm(Llm::createLLM(model));
    return llm && llm->dump_config().find("\"attention_type\":\"mix\"") != std::string::npos;
}

}  // namespace

int main(int count, char** arguments) {
    const int alone = count >= 5 ? std::atoi(arguments[4]) : 0;
    const bool is_right = count == 4 || count == 7 || (count == 5 && (alone == 1 || alone == 2 || alone == 4));
    if (!is_right || std::atof(arguments[3]) <= 0) {
        std::fprintf(stderr, "usage: mnnkv_prove CONFIG FOLDER BUDGET_MB [THREADS]\n");
        return 2;
    }
    const std::string folder = arguments[2];
    const double budget = std::atof(arguments[3]);
    const std::string file = folder + "/chat.kv";
    if (count == 7) {
        const chat how = chats(folder, budget).at(static_cast<std::size_t>(std::atoi(arguments[5])));
        const int turn = std::atoi(arguments[6]);
        return print_turn(run(arguments[1], how, file, budget, alone, turn, turn + 1));
    }
    bool sound = true;
    for (const int threads : {1, 2, 4}) {
        if (alone != 0 && alone != threads) {
            continue;
        }
        std::map<std::string, tokens> known;
        int number = 0;
        for (const chat& each : chats(folder, budget)) {
            if (each.config.find("kv_h2o_enable") != std::string::npos && has_windows(arguments[1])) {
                std::printf("skip  %d threads, %s: the model has sliding windows\n", threads, each.name);
                continue;
            }
            std::remove(file.c_str());
            const auto begin = std::chrono::steady_clock::now();
            std::string command;
            for (const std::string& part : {std::string(arguments[0]), std::string(arguments[1]), folder,
                                            std::string(arguments[3]), std::to_string(threads), std::to_string(number++)}) {
                command += "'" + part + "' ";
            }
            const tokens all = (each.does & resumes) != 0 ? run_apart(command) : run(arguments[1], each, file, budget, threads);
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
