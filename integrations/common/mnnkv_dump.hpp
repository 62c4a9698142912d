// Dumps: K and V of an engine's steps as files, for `mnnkv evaluate`. Names no engine. README.md has the format.
//
// C++11, needs neither exceptions nor RTTI. Writing is synchronous and slow: several files per layer and step.

#ifndef MNNKV_DUMP_HPP
#define MNNKV_DUMP_HPP

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#ifdef _WIN32
#include <direct.h>
#else
#include <sys/stat.h>
#endif

#include "mnnkv/layout.h"
#include "mnnkv_files.hpp"
#include "mnnkv_json.hpp"

namespace mnnkv_host {

/// The tokens that one step appended to one layer.
struct dump_step {
    /// The step's tokens are the last `tokens` ones of its kv_len. K and V are F16 or F32; quantised ones are not dumped.
    const mnnkv_cache* cache;
    std::uint32_t tokens;
    /// The chat's number of the first of them.
    std::uint64_t position;
    /// The tokens belong to a prompt.
    bool prompt;
};

/// A file that has its name once it is complete; until then it is `<path>.part`, which the destructor removes.
class dump_file {
public:
    explicit dump_file(const std::string& name)
        // Opening a pipe would block, and a device would get the bytes.
        : path(name), refusal_(file_refusal(path + ".part")),
          file_(refusal_.empty() ? open((path + ".part").c_str()) : nullptr) {
        if (file_ == nullptr && refusal_.empty()) {
            refusal_ = std::generic_category().message(errno);
        }
    }
    dump_file(const dump_file&) = delete;
    dump_file& operator=(const dump_file&) = delete;
    ~dump_file() {
        if (file_ != nullptr) {
            std::fclose(file_);
            drop();
        }
    }

    const std::string path;

    /// False: `refusal` has the reason, also for a file that was not opened.
    bool write(const void* bytes, std::size_t count) {
        if (file_ != nullptr && std::fwrite(bytes, 1, count, file_) != count) {
            refusal_ = std::generic_category().message(errno);
        }
        return refusal_.empty();
    }

    /// Gives the file its name. False: `refusal` has the reason.
    bool finish() {
        const bool closed = std::fclose(file_) == 0;
        file_ = nullptr;
        refusal_ = closed ? replace_file(path + ".part", path) : std::generic_category().message(errno);
        if (!refusal_.empty()) {
            drop();
        }
        return refusal_.empty();
    }

    const std::string& refusal() const { return refusal_; }

private:
    static std::FILE* open(const char* path) {
#ifdef _MSC_VER
        std::FILE* file = nullptr;
        return fopen_s(&file, path, "wb") == 0 ? file : nullptr;
#else
        return std::fopen(path, "wb");
#endif
    }

    void drop() const { (void)remove_file(path + ".part"); }

    std::string refusal_;
    std::FILE* file_;
};

/// The dump of one model: <folder>/<run>/layer_<n>/. A run is consecutive tokens of one chat: a new chat and an edit of
/// the history begin another one. The first failure prints one line and ends the dump. One thread at a time.
class cache_dump {
public:
    /// `folder` is made at the first step; the one above it must exist.
    cache_dump(const std::string& folder, void (*print)(const char* line)) : folder_(folder), print_(print) {}

    /// The lowest number that no layer has: a model's layers have the order in which they are made.
    std::uint32_t take_number() {
        std::uint32_t number = 0;
        while (!taken_.insert(number).second) {
            ++number;
        }
        return number;
    }

    void return_number(std::uint32_t number) { taken_.erase(number); }

    /// Prints a line once.
    void say_once(const std::string& line) {
        if (printed_.insert(line).second) {
            print_(("mnn-kv: " + line).c_str());
        }
    }

    /// Writes a step's files. Each is complete or absent; those of a step that fails are absent.
    void write(std::uint32_t layer, const dump_step& step) {
        if (!on_ || step.tokens == 0 || !enter(layer, step.position)) {
            return;
        }
        made_.clear();
        const std::string place = layer_folder(layer) + "/";
        const std::string name =
            "t" + std::to_string(step.position) + "_" + std::to_string(step.position + step.tokens);
        if (write_rows(place, name, step) && write_meta(place, name, layer, step)) {
            next_[layer] = step.position + step.tokens;
            return;
        }
        for (const std::string& path : made_) {
            (void)remove_file(path);
        }
    }

private:
    static std::size_t word(const mnnkv_layout& layout) { return layout.key_dtype == MNNKV_DTYPE_F32 ? 4 : 2; }

    /// K and V by way of dense rows, some tokens at a time.
    bool write_rows(const std::string& place, const std::string& name, const dump_step& step) {
        const mnnkv_layout& layout = *step.cache->layout;
        if (layout.key_dtype != layout.value_dtype || layout.key_dtype > MNNKV_DTYPE_F32) {
            return fail(place + name, "a quantised cache is not dumped");
        }
        if (layout.key_dtype == MNNKV_DTYPE_BF16) {
            return fail(place + name, "dtype must be F16 or F32");
        }
        dump_file key(place + "k_" + name + ".bin"), value(place + "v_" + name + ".bin");
        const std::size_t row = layout.head_dim * word(layout);
        for (std::uint32_t done = 0, count = 0; done < step.tokens; done += count) {
            count = std::min<std::uint32_t>(step.tokens - done, 256);
            const std::size_t bytes = count * layout.kv_heads * row;
            rows_.resize(3 * bytes);
            char *const keys = &rows_[0], *const values = keys + bytes, *const turned = values + bytes;
            const std::uint32_t begin = step.cache->kv_len - step.tokens + done;
            if (mnnkv_kv_gather(&layout, step.cache->key, step.cache->value, begin, count, keys, values, bytes) != MNNKV_OK) {
                return fail(place + name, mnnkv_last_error());
            }
            for (dump_file* file : {&key, &value}) {
                turn(file == &key ? keys : values, count, layout.kv_heads, row, turned);
                if (!file->write(turned, bytes)) {
                    return fail(file->path, file->refusal());
                }
            }
        }
        return finish(key) && finish(value);
    }

    /// [head][token] to [token][head].
    static void turn(const char* from, std::size_t tokens, std::size_t heads, std::size_t row, char* to) {
        for (std::size_t token = 0; token < tokens; ++token) {
            for (std::size_t head = 0; head < heads; ++head, to += row) {
                std::memcpy(to, from + (head * tokens + token) * row, row);
            }
        }
    }

    /// The last file of a step: a reader that finds it finds the others.
    bool write_meta(const std::string& place, const std::string& name, std::uint32_t layer, const dump_step& step) {
        const mnnkv_layout& layout = *step.cache->layout;
        const std::size_t bytes = word(layout);
        std::string text = "{\"run_id\": \"" + run_ + "\"";
        const auto add = [&text](const char* key, const std::string& value) {
            text += std::string(", \"") + key + "\": " + value;
        };
        const auto quoted = [](const std::string& plain) { return '"' + plain + '"'; };
        add("layer_id", std::to_string(layer));
        add("stage", step.prompt ? "\"prefill\"" : "\"decode\"");
        add("seq_start", std::to_string(step.position));
        add("seq_len", std::to_string(step.tokens));
        add("seq_end_exclusive", std::to_string(step.position + step.tokens));
        add("kv_heads", std::to_string(layout.kv_heads));
        add("head_dim", std::to_string(layout.head_dim));
        add("bytes_per_elem", std::to_string(bytes));
        add("dtype", bytes == 2 ? "\"fp16\"" : "\"fp32\"");
        add("k_file", quoted("k_" + name + ".bin"));
        add("v_file", quoted("v_" + name + ".bin"));
        text += "}\n";
        dump_file meta(place + "meta_" + name + ".json");
        return meta.write(text.data(), text.size()) ? finish(meta) : fail(meta.path, meta.refusal());
    }

    bool finish(dump_file& file) {
        if (!file.finish()) {
            return fail(file.path, file.refusal());
        }
        made_.push_back(file.path);
        return true;
    }

    /// Continues the run where the layer's last step ended, or begins one.
    bool enter(std::uint32_t layer, std::uint64_t position) {
        const auto at = next_.find(layer);
        if (at != next_.end() && at->second == position) {
            return true;
        }
        if (run_.empty() || at != next_.end()) {
            next_.clear();
            if (!begin_run()) {
                return false;
            }
        }
        return make_folder(layer_folder(layer)) || errno == EEXIST || fail(layer_folder(layer));
    }

    /// Makes a folder that was not there, so that a run never has files of another one.
    bool begin_run() {
        if (!make_folder(folder_) && errno != EEXIST) {
            return fail(folder_);
        }
        const std::string start = "run_" + std::to_string(static_cast<long long>(std::time(nullptr))) + "_";
        for (int count = 0;; ++count) {
            run_ = start + std::to_string(count);
            if (make_folder(folder_ + "/" + run_)) {
                return true;
            }
            if (errno != EEXIST) {
                return fail(folder_ + "/" + run_);
            }
        }
    }

    std::string layer_folder(std::uint32_t layer) const {
        return folder_ + "/" + run_ + "/layer_" + std::to_string(layer);
    }

    static bool make_folder(const std::string& path) {
#ifdef _WIN32
        return _mkdir(path.c_str()) == 0;
#else
        return mkdir(path.c_str(), 0777) == 0;
#endif
    }

    bool fail(const std::string& path) { return fail(path, std::generic_category().message(errno)); }

    bool fail(const std::string& path, const std::string& why) {
        on_ = false;
        say_once("dump off: " + path + ": " + why);
        return false;
    }

    const std::string folder_;
    void (*const print_)(const char* line);
    /// Nothing has failed.
    bool on_ = true;
    std::string run_;
    std::set<std::string> printed_;
    std::set<std::uint32_t> taken_;
    /// The token after the last one that a layer has written in this run.
    std::map<std::uint32_t, std::uint64_t> next_;
    /// Complete files of this step.
    std::vector<std::string> made_;
    std::vector<char> rows_;
};

}  // namespace mnnkv_host

#endif  // MNNKV_DUMP_HPP
