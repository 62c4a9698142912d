// What `perplexity` needs of an engine, and how its results are written. Names no engine, needs no library.
//
// C++11, needs neither exceptions nor RTTI.

#ifndef MNNKV_DECODER_HPP
#define MNNKV_DECODER_HPP

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "mnnkv_files.hpp"
#include "mnnkv_json.hpp"

namespace mnnkv_host {

/// The calls of an engine.
class decoder {
public:
    virtual ~decoder() {}
    /// Loads a model; settings: a JSON object that extends its config, or "". False: the engine has printed why.
    virtual bool load(const std::string& config, const std::string& settings) = 0;
    virtual std::vector<int> encode(const std::string& text) = 0;
    /// Appends tokens to the chat. Returns the logits after the last one, valid until the next call; NULL on failure.
    virtual const float* forward(const std::vector<int>& tokens, std::size_t& vocabulary) = 0;
    /// Begins a new chat.
    virtual void reset() = 0;
    /// The config as a JSON object, with metrics as "kv_metrics".
    virtual std::string config() = 0;
};

/// The logarithm of a token's probability; NaN where a logit is NaN, or none is finite.
inline double log_probability(const float* logits, std::size_t vocabulary, std::size_t token) {
    const double top = *std::max_element(logits, logits + vocabulary);
    double sum = 0;
    for (std::size_t i = 0; i < vocabulary; ++i) {
        sum += std::exp(logits[i] - top);
    }
    return logits[token] - top - std::log(sum);
}

/// Prints why. Returns false.
inline bool perplexity_fails(const std::string& what) {
    std::fprintf(stderr, "perplexity: %s\n", what.c_str());
    return false;
}

/// The number of tokens of the engine's model, by a forward of token 0 and a reset. 0: it failed, and why is printed.
inline std::size_t vocabulary_of(decoder& engine) {
    std::size_t vocabulary = 0;
    if (engine.forward({0}, vocabulary) == nullptr) {
        perplexity_fails("the model cannot compute token 0");
        vocabulary = 0;
    }
    engine.reset();
    return vocabulary;
}

/// A number in a format of printf.
template <class Number>
std::string formatted(const char* format, Number number) {
    char text[40];
    std::snprintf(text, sizeof text, format, number);
    return text;
}

/// FNV-1a of tokens: two results with equal ones are of the same tokens.
class token_hash {
public:
    void add(int token) {
        for (int shift = 0; shift < 32; shift += 8) {
            hash_ = (hash_ ^ (static_cast<std::uint32_t>(token) >> shift & 255)) * 1099511628211ull;
        }
    }
    std::string text() const { return formatted("\"%016llx\"", hash_); }

private:
    unsigned long long hash_ = 14695981039346656037ull;
};

/// The last members of a result: the keys of the engine's config that begin with "kv_", and the metrics.
inline std::string config_members(decoder& engine) {
    std::string config, metrics = "{}";
    for (const auto& member : json_members(engine.config())) {
        if (member.first == "kv_metrics") {
            metrics = member.second;
        } else if (member.first.compare(0, 3, "kv_") == 0) {
            config += (config.empty() ? "\"" : ", \"") + member.first + "\": " + member.second;
        }
    }
    return "\"config\": {" + config + "},\n  \"kv_metrics\": " + metrics;
}

/// Prints a result to stdout and writes it to a file, unless `path` is "". The file is complete or absent.
inline bool write_result(const std::string& path, const std::string& text) {
    std::fputs(text.c_str(), stdout);
    if (path.empty()) {
        return true;
    }
    const std::string part = path + ".part";
    // Also of the unfinished file: opening a pipe would block, and a device would get the bytes.
    std::string refusal = file_refusal(path);
    refusal = refusal.empty() ? file_refusal(part) : refusal;
    if (!refusal.empty()) {
        return perplexity_fails(refusal);
    }
    errno = 0;
    std::ofstream file(part.c_str(), std::ios::binary);
    file << text;
    file.close();
    if (file.fail()) {
        const int error = errno;
        (void)remove_file(part);
        return perplexity_fails(path + ": " + std::generic_category().message(error));
    }
    refusal = replace_file(part, path);
    if (!refusal.empty()) {
        (void)remove_file(part);
    }
    return refusal.empty() || perplexity_fails(refusal);
}

}  // namespace mnnkv_host

#endif  // MNNKV_DECODER_HPP
