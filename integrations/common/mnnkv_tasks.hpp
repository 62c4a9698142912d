// Texts with scored ranges, as `mnnkv quality --tasks` reads them (docs/quality.md), and their losses in an engine.
// Names no engine, needs no library.
//
// C++11, needs neither exceptions nor RTTI.

#ifndef MNNKV_TASKS_HPP
#define MNNKV_TASKS_HPP

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "mnnkv_decoder.hpp"

namespace mnnkv_host {

/// A text. The engine sees the tokens before `question_from` at once, and then one by one.
struct task_item {
    std::string kind, id;
    std::vector<int> tokens;  ///< up to the last that is scored
    std::size_t question_from = 0, score_from = 0;
    double loss = 0;     ///< mean of the scored tokens, in nats
    bool exact = false;  ///< every scored token is the model's first choice
};

/// The items of a file: an object on each line, with `kind`, `tokens`, `question_from`, `score_from`, `score_to`, and `id` if
/// it has a name. Other members are not read.
class task_file {
public:
    task_file(const std::string& name, std::size_t vocabulary) : name_(name), vocabulary_(vocabulary) {}

    /// False: a mistake is printed with its line and member.
    bool read(const std::string& contents, std::vector<task_item>& items) {
        std::istringstream lines(contents);
        std::string line;
        std::set<std::string> ids;
        for (line_ = 1; std::getline(lines, line); ++line_) {
            line = json_trimmed(line, 0, line.size());
            if (line.empty()) {
                continue;
            }
            task_item item;
            if (!read_item(line, item)) {
                return false;
            }
            if (!ids.insert(item.id).second) {
                return wrong("id " + json_quoted(item.id) + " comes twice");
            }
            items.push_back(item);
        }
        return !items.empty() || perplexity_fails(name_ + ": has no items");
    }

private:
    bool wrong(const std::string& what) const {
        return perplexity_fails(name_ + ": line " + std::to_string(line_) + ": " + what);
    }

    bool read_item(const std::string& line, task_item& item) const {
        std::map<std::string, std::string> members;
        if (!json_is_one_object(line)) {
            return wrong("one JSON object expected");
        }
        for (const auto& member : json_members(line)) {
            if (!members.insert(member).second) {
                return wrong(member.first + ": comes twice");
            }
        }
        if (!json_text(members["kind"], item.kind) || item.kind.empty()) {
            return wrong("kind: a text expected");
        }
        const std::string id = members["id"];
        if (id.empty()) {
            item.id = "line " + std::to_string(line_);
        } else if (!json_text(id, item.id)) {
            return wrong("id: is " + id + "; a text expected");
        }
        if (!read_tokens(members["tokens"], item.tokens)) {
            return false;
        }
        const std::size_t count = item.tokens.size();
        std::size_t end = 0;
        if (!place("question_from", members["question_from"], 1, count - 1, item.question_from) ||
            !place("score_from", members["score_from"], item.question_from, count - 1, item.score_from) ||
            !place("score_to", members["score_to"], item.score_from + 1, count, end)) {
            return false;
        }
        item.tokens.resize(end);
        return true;
    }

    bool read_tokens(const std::string& text, std::vector<int>& tokens) const {
        if (text.size() < 2 || text[0] != '[' || text[text.size() - 1] != ']') {
            return wrong("tokens: an array of token ids expected");
        }
        const std::string inside = json_trimmed(text, 1, text.size() - 1);
        for (std::size_t at = 0; at < inside.size();) {
            const std::size_t end = std::min(inside.find(',', at), inside.size());
            const std::string number = json_trimmed(inside, at, end);
            std::size_t id = 0;
            if (!whole(number, id) || id >= vocabulary_) {
                return wrong("tokens[" + std::to_string(tokens.size()) + "]: is " + number + "; 0 to " +
                             std::to_string(vocabulary_ - 1) + ", a token of the model, expected");
            }
            tokens.push_back(static_cast<int>(id));
            at = end + 1;
        }
        return tokens.size() >= 2 || wrong("tokens: " + std::to_string(tokens.size()) + " of them; 2 or more expected");
    }

    bool place(const std::string& name, const std::string& text, std::size_t least, std::size_t most,
               std::size_t& number) const {
        if (!whole(text, number) || number < least || number > most) {
            return wrong(name + ": is " + (text.empty() ? "missing" : text) + "; " + std::to_string(least) + " to " +
                         std::to_string(most) + " expected");
        }
        return true;
    }

    /// Only digits, as JSON has them.
    static bool whole(const std::string& text, std::size_t& number) {
        if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos ||
            (text[0] == '0' && text.size() > 1)) {
            return false;
        }
        number = static_cast<std::size_t>(std::strtoul(text.c_str(), nullptr, 10));
        return true;
    }

    const std::string name_;
    const std::size_t vocabulary_;
    std::size_t line_ = 0;
};

/// The losses of items in an engine that has loaded its model.
class task_run {
public:
    explicit task_run(decoder& engine) : engine_(engine) {}

    /// Reads and scores `contents`, a file named `path`, and writes the result to `output`.
    bool run(const std::string& model, const std::string& settings, const std::string& path, const std::string& contents,
             const std::string& output) {
        const std::size_t vocabulary = vocabulary_of(engine_);
        if (vocabulary == 0 || !task_file(path, vocabulary).read(contents, items_)) {
            return false;
        }
        for (std::size_t at = 0; at < items_.size(); ++at) {
            std::fprintf(stderr, "\r%zu of %zu texts", at, items_.size());
            if (!score(items_[at])) {
                return false;
            }
        }
        std::fprintf(stderr, "\r%zu of %zu texts\n", items_.size(), items_.size());
        return write_result(output, result(model, settings, path));
    }

private:
    /// Each item is a chat of its own.
    bool score(task_item& item) {
        engine_.reset();
        item.exact = true;
        const auto prompt = item.tokens.begin() + static_cast<std::ptrdiff_t>(item.question_from);
        std::vector<int> next(item.tokens.begin(), prompt);
        for (std::size_t at = item.question_from; at < item.tokens.size(); ++at) {
            const auto start = std::chrono::steady_clock::now();
            std::size_t vocabulary = 0;
            const float* const logits = engine_.forward(next, vocabulary);
            const std::size_t token = static_cast<std::size_t>(item.tokens[at]);
            const std::string what = item.id + ": token " + std::to_string(at);
            if (logits == nullptr || token >= vocabulary) {
                return perplexity_fails("the model cannot compute " + what);
            }
            if (at > item.question_from) {
                seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
                ++steps_;
            }
            if (at >= item.score_from) {
                const double here = log_probability(logits, vocabulary, token);
                if (!std::isfinite(here)) {
                    return perplexity_fails("the model gives no finite likelihood to " + what);
                }
                item.loss -= here;
                item.exact = item.exact && std::max_element(logits, logits + vocabulary) == logits + token;
            }
            next.assign(1, item.tokens[at]);
        }
        item.loss /= static_cast<double>(item.tokens.size() - item.score_from);
        return true;
    }

    std::string result(const std::string& model, const std::string& settings, const std::string& path) const {
        token_hash hash;
        std::vector<std::string> kinds;
        std::string of_items;
        for (const task_item& item : items_) {
            std::for_each(item.tokens.begin(), item.tokens.end(), [&hash](int token) { hash.add(token); });
            hash.add(static_cast<int>(item.question_from));
            hash.add(static_cast<int>(item.score_from));
            if (std::find(kinds.begin(), kinds.end(), item.kind) == kinds.end()) {
                kinds.push_back(item.kind);
            }
            of_items += (of_items.empty() ? "" : ",\n    ") + ("{\"id\": " + json_quoted(item.id)) + ", \"kind\": " +
                        json_quoted(item.kind) + ", \"loss\": " + json_number_text(item.loss, 9) +
                        ", \"exact\": " + (item.exact ? "true}" : "false}");
        }
        std::string of_kinds;
        for (const std::string& kind : kinds) {
            of_kinds += (of_kinds.empty() ? "" : ",\n    ") + row(kind);
        }
        return "{\n  \"format\": \"mnnkv-tasks\", \"version\": 1,\n  \"model\": " + json_quoted(model) +
               ",\n  \"tasks\": " + json_quoted(path.substr(path.find_last_of("/\\") + 1)) + ", \"tokens_fnv1a\": " + hash.text() +
               ",\n  \"kinds\": [\n    " + of_kinds + "],\n  \"items\": [\n    " + of_items +
               "],\n  \"decode_seconds\": " + json_number_text(seconds_, 6) + ", \"decode_steps\": " + std::to_string(steps_) +
               ",\n  \"settings\": " + (settings.empty() ? "{}" : settings) + ", " + config_members(engine_) + "\n}\n";
    }

    /// Means over the items of a kind, and the standard error of that of losses.
    std::string row(const std::string& kind) const {
        double count = 0, sum = 0, squares = 0, exact = 0;
        for (const task_item& item : items_) {
            if (item.kind == kind) {
                count += 1;
                sum += item.loss;
                squares += item.loss * item.loss;
                exact += item.exact ? 1 : 0;
            }
        }
        const double mean = sum / count;
        const double variance = std::max(squares - sum * mean, 0.0) / std::max(count - 1, 1.0);
        return "{\"kind\": " + json_quoted(kind) + ", \"items\": " + formatted("%.0f", count) + ", \"loss\": " +
               json_number_text(mean, 9) + ", \"error\": " +
               (count > 1 ? json_number_text(std::sqrt(variance / count), 3) : "null") +
               ", \"exact_share\": " + json_number_text(exact / count, 4) + "}";
    }

    decoder& engine_;
    std::vector<task_item> items_;
    double seconds_ = 0;
    std::size_t steps_ = 0;
};

}  // namespace mnnkv_host

#endif  // MNNKV_TASKS_HPP
