// The perplexity of a text, decoded token by token with the true tokens. Eviction and compression act as in a chat,
// which a forward pass over whole windows does not show. Names no engine, needs no library.
//
// C++11, needs neither exceptions nor RTTI.

#ifndef MNNKV_PERPLEXITY_HPP
#define MNNKV_PERPLEXITY_HPP

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "mnnkv_decoder.hpp"
#include "mnnkv_tasks.hpp"

namespace mnnkv_host {

/// `perplexity` on a command line, after the program's own name.
class perplexity_run {
public:
    explicit perplexity_run(decoder& engine) : engine_(engine) {}

    /// Returns the exit status: 0 done, 2 the command line is wrong, 3 failed. Errors go to stderr, the result to
    /// stdout and to a file, which is complete or absent.
    int main(int argc, const char* const* argv) {
        if (!parse(argc, argv)) {
            std::fprintf(stderr,
                         "usage: perplexity -m CONFIG.json TEXT [-p TOKENS] [-n TOKENS] [-s JSON] [-o RESULT.json]\n"
                         "       perplexity -m CONFIG.json --tasks FILE.jsonl [-s JSON] [-o RESULT.json]\n"
                         "  -m  config of the model\n"
                         "  -p  length of the prompt, which is computed at once (64); the rest is decoded\n"
                         "  -n  most tokens of the text (all)\n"
                         "  -s  settings that extend the config, such as '{\"kv_h2o_enable\": true}'\n"
                         "  -o  file for the result\n"
                         "TEXT is encoded by the model's tokenizer; a file *.u16 or *.u32 has token ids,\n"
                         "little-endian. FILE.jsonl has a text with a scored range on each line, as for\n"
                         "`mnnkv quality`; the result has the loss of each kind.\n");
            return 2;
        }
        if (!load_text() || !engine_.load(model_, settings_) || !settings_hold()) {
            return 3;
        }
        if (tasks_) {
            return task_run(engine_).run(model_, settings_, text_, contents_, output_) ? 0 : 3;
        }
        return encode() && decode() && report() ? 0 : 3;
    }

private:
    bool parse(int argc, const char* const* argv) {
        for (int i = 0; i < argc; ++i) {
            const std::string name = argv[i];
            if (name == "--tasks" && i + 1 < argc && text_.empty()) {
                tasks_ = true;
                text_ = argv[++i];
                continue;
            }
            if (name.size() == 2 && name[0] == '-' && i + 1 < argc) {
                const char* const value = argv[++i];
                bool right = true;
                switch (name[1]) {
                case 'm': model_ = value; break;
                case 's': settings_ = value; break;
                case 'o': output_ = value; break;
                case 'p': right = of_text_ = count(value, prompt_); break;
                case 'n': right = of_text_ = count(value, most_); break;
                default: right = false;
                }
                if (right) {
                    continue;
                }
                return wrong(name + " " + value);
            }
            if (name.empty() || name[0] == '-' || !text_.empty()) {
                return wrong(name);
            }
            text_ = name;
        }
        if (tasks_ && of_text_) {
            return wrong("-p and -n are of a TEXT; the items of --tasks say where their prompts end");
        }
        return !model_.empty() && !text_.empty() ? true : wrong("-m, and TEXT or --tasks, are required");
    }

    static bool count(const char* text, std::size_t& number) {
        char* end = nullptr;
        const long long value = std::strtoll(text, &end, 10);
        number = static_cast<std::size_t>(value);
        return end != text && *end == 0 && value > 0 && value < 1000000000;
    }

    static bool wrong(const std::string& what) {
        std::fprintf(stderr, "perplexity: wrong argument: %s\n", what.c_str());
        return false;
    }

    bool load_text() {
        errno = 0;
        std::ifstream file(text_.c_str(), std::ios::binary);
        // Not by an iterator of the buffer, which throws where a folder is read.
        char piece[4096];
        while (file.read(piece, sizeof piece) || file.gcount() > 0) {
            contents_.append(piece, static_cast<std::size_t>(file.gcount()));
        }
        if (!file.is_open() || file.bad()) {
            return perplexity_fails(text_ + ": " + std::generic_category().message(errno != 0 ? errno : EIO));
        }
        return true;
    }

    /// Engines may ignore what they cannot parse, and would then score the baseline.
    bool settings_hold() {
        const auto members = json_members(settings_);
        if (members.empty() && !settings_.empty() && settings_ != "{}") {
            return perplexity_fails("-s " + settings_ + ": not a JSON object");
        }
        const auto config = json_members(engine_.config());
        for (const auto& member : members) {
            const auto same = [&member](const std::pair<std::string, std::string>& other) {
                return other.first == member.first;
            };
            if (std::none_of(config.begin(), config.end(), same)) {
                return perplexity_fails("-s " + settings_ + ": the engine did not take " + member.first);
            }
        }
        return true;
    }

    bool encode() {
        const std::size_t dot = text_.rfind('.');
        const std::string suffix = dot == std::string::npos ? "" : text_.substr(dot);
        const std::size_t bytes = suffix == ".u16" ? 2 : suffix == ".u32" ? 4 : 0;
        if (bytes == 0) {
            tokens_ = engine_.encode(contents_);
        } else if (contents_.size() % bytes != 0) {
            return perplexity_fails(text_ + ": " + std::to_string(contents_.size()) + " bytes are no whole number of ids");
        } else if (!read_ids(bytes)) {
            return false;
        }
        tokens_.resize(std::min(tokens_.size(), most_));
        if (tokens_.size() <= prompt_) {
            return perplexity_fails(text_ + ": " + std::to_string(tokens_.size()) + " tokens; a prompt of " +
                        std::to_string(prompt_) + " needs at least " + std::to_string(prompt_ + 1));
        }
        return true;
    }

    /// A token that is none may crash an engine, so they are compared with the number that it has.
    bool read_ids(std::size_t bytes) {
        const std::size_t vocabulary = vocabulary_of(engine_);
        if (vocabulary == 0) {
            return false;
        }
        for (std::size_t at = 0; at < contents_.size(); at += bytes) {
            std::uint32_t id = 0;
            for (std::size_t i = bytes; i-- > 0;) {
                id = id << 8 | static_cast<unsigned char>(contents_[at + i]);
            }
            if (id >= vocabulary) {
                return perplexity_fails(text_ + ": id " + std::to_string(id) + " at byte " + std::to_string(at) +
                            "; the model has " + std::to_string(vocabulary) + " tokens");
            }
            tokens_.push_back(static_cast<int>(id));
        }
        return true;
    }

    bool decode() {
        std::vector<int> next(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(prompt_));
        for (std::size_t at = prompt_; at < tokens_.size(); ++at) {
            const auto start = std::chrono::steady_clock::now();
            std::size_t vocabulary = 0;
            const float* const logits = engine_.forward(next, vocabulary);
            const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
            const std::size_t token = static_cast<std::size_t>(tokens_[at]);
            if (logits == nullptr || token >= vocabulary) {
                return perplexity_fails("the model cannot compute token " + std::to_string(at));
            }
            const double here = log_probability(logits, vocabulary, token);
            if (!std::isfinite(here)) {
                return perplexity_fails("the model gives token " + std::to_string(at) + " no finite likelihood");
            }
            sum_ += here;
            seconds_ += at > prompt_ ? passed.count() : 0;
            next.assign(1, tokens_[at]);
        }
        return true;
    }

    bool report() {
        token_hash hash;
        std::for_each(tokens_.begin(), tokens_.end(), [&hash](int token) { hash.add(token); });
        const std::size_t scored = tokens_.size() - prompt_;
        const double mean = sum_ / static_cast<double>(scored);
        const std::string text =
            "{\n  \"format\": \"mnnkv-ppl\", \"version\": 1,\n  \"model\": " + json_quoted(model_) +
            ",\n  \"text\": " + json_quoted(text_.substr(text_.find_last_of("/\\") + 1)) +
            ", \"text_bytes\": " + std::to_string(contents_.size()) + ", \"tokens_fnv1a\": " + hash.text() +
            ",\n  \"tokens\": " + std::to_string(tokens_.size()) + ", \"prompt_tokens\": " + std::to_string(prompt_) +
            ", \"scored_tokens\": " + std::to_string(scored) +
            ",\n  \"mean_log_likelihood\": " + json_number_text(mean, 17) +
            ", \"perplexity\": " + json_number_text(std::exp(-mean), 17) +
            ",\n  \"decode_seconds\": " + json_number_text(seconds_, 6) + ",\n  \"settings\": " +
            (settings_.empty() ? "{}" : settings_) + ", " + config_members(engine_) + "\n}\n";
        return write_result(output_, text);
    }

    decoder& engine_;
    std::string model_, settings_, text_, output_;
    std::size_t prompt_ = 64, most_ = 1000000000;
    std::string contents_;
    bool tasks_ = false;    // text_ is a file of items
    bool of_text_ = false;  // -p or -n
    std::vector<int> tokens_;
    double sum_ = 0, seconds_ = 0;
};

}  // namespace mnnkv_host

#endif  // MNNKV_PERPLEXITY_HPP
