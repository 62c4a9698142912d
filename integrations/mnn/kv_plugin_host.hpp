// mnn-kv inside Alibaba MNN: what the LLM engine sets for a model, and its codes of failures. Included by kv_plugin.hpp.

#ifndef KV_PLUGIN_HOST_HPP
#define KV_PLUGIN_HOST_HPP

#include <MNN/ErrorCode.hpp>
#include <MNN/MNNDefine.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/KVMeta.hpp"
#include "mnnkv_dump.hpp"
#include "mnnkv_host.hpp"
#include "mnnkv_json.hpp"
#include "mnnkv_keys.hpp"
// MNN is built without the library, which is loaded at run time.
#ifdef MNNKV_LOAD
#ifdef KV_PLUGIN_IMPLEMENTATION
#define MNNKV_LOAD_IMPLEMENTATION
#endif
#include "mnnkv/load.h"
#endif

namespace kv_plugin {

class chat;
class layer;

/// Where mnn-kv does nothing in a model, and why: what its log, metrics and commands say. Any thread.
class off_state {
public:
    /// The whole model, from now on. Each reason is printed once.
    void set(const std::string& why) {
        const std::lock_guard<std::mutex> guard(mutex_);
        model_ = model_.empty() ? why : model_;
        say(why);
    }

    /// A cache, from now on. "": it is on.
    void set(const void* cache, const std::string& why) {
        const std::lock_guard<std::mutex> guard(mutex_);
        caches_[cache] = why;
        say(why);
    }

    /// There is no such cache any more.
    void forget(const void* cache) {
        const std::lock_guard<std::mutex> guard(mutex_);
        caches_.erase(cache);
    }

    /// Why the model, or each of its caches, is off; "" where something is on, or nothing is known.
    std::string all() const {
        const std::lock_guard<std::mutex> guard(mutex_);
        for (const auto& cache : caches_) {
            if (model_.empty() && cache.second.empty()) {
                return "";
            }
        }
        return first();
    }

    /// The same where not all of it is.
    std::string some() const {
        const std::lock_guard<std::mutex> guard(mutex_);
        return first();
    }

private:
    std::string first() const {
        std::string why = model_;
        for (const auto& cache : caches_) {
            why = why.empty() ? cache.second : why;
        }
        return why;
    }

    void say(const std::string& why) {
        if (!why.empty() && printed_.insert(why).second) {
            MNN_PRINT("mnn-kv: off where %s\n", why.c_str());
        }
    }

    mutable std::mutex mutex_;
    std::string model_;
    std::map<const void*, std::string> caches_;
    std::set<std::string> printed_;
};

/// What an op of linear attention remembers of a chat, in memory that it has until its end.
struct op_state {
    std::weak_ptr<void> owner;
    std::vector<std::pair<char*, std::size_t>> parts;
};

/// The LLM engine's settings of a model, from before it is loaded.
struct host {
    host() = default;
    /// The model's config as a JSON object. Keys that are wrong are named later.
    explicit host(const std::string& json) : config(json) {
        for (const auto& member : mnnkv_host::json_members(config)) {
            const std::string &key = member.first, &value = member.second;
            double number = 1;
            const bool is_zero = mnnkv_host::json_number(value, number) && number == 0;
            const bool on = value != "false" && value != "\"off\"" && !is_zero;
            bounds = bounds || (on && (key == "kv_memory_mb" || key == "kv_memory_bytes"));
            quantises = quantises || (on && key == "kv_quant");
            evicts = evicts || (on && key == "kv_h2o_enable");
            compresses = compresses || (on && key == "kv_lossless_enable");
            chats = chats || (on && key == "kv_chat_enable");
            logs = logs || (on && key == "kv_h2o_log_stats");
            drafts = drafts || (key == "speculative_type" && value != "\"\"");
            required = required || (key == "kv_required" && value == "true");
            has_chunk = has_chunk || (key == "chunk" && !is_zero) || key == "chunk_limits";
            if (key == "chunk" && mnnkv_host::json_number(value, number)) {
                chunk = static_cast<std::uint64_t>(number);
            } else if (key == "sliding_window" && mnnkv_host::json_number(value, number) && number > 0) {
                sliding_window = static_cast<std::uint32_t>(number);
            } else if (key == "kv_dump_folder") {
                (void)mnnkv_host::json_path(value, dump_folder);
            } else if (key == "kv_library") {
                (void)mnnkv_host::json_path(value, library);
            } else if (key == "kv_memory_file") {
                (void)mnnkv_host::json_path(value, file);
            }
        }
    }

    std::string config;
    /// kv_memory_mb or _bytes, kv_quant, kv_h2o_enable, kv_lossless_enable and kv_chat_enable: with none no session is made.
    bool bounds = false, quantises = false, evicts = false, compresses = false, chats = false;
    /// MNN's chunk, 0 if it has no number, and whether it has one or chunk_limits.
    std::uint64_t chunk = 0;
    bool has_chunk = false;
    /// kv_dump_folder: where K, V and Q of every step are written; "": nowhere.
    std::string dump_folder;
    /// kv_library: the file that is loaded where MNN is built without the library; "": mnnkv_load looks for one.
    std::string library;
    /// kv_h2o_log_stats: one line per eviction.
    bool logs = false;
    /// kv_required: each step fails where the library or a session is missing, or a cache is refused.
    bool required = false;
    /// The files of the model, which files of its chats are bound to.
    std::vector<std::string> model_files;
    /// As in llm_config.json: "full", "mix" ...; "float", "glm" ...
    std::string attention_type, attention_mask;
    /// Of llm_config.json, where it has one: tokens that a row of some layers attends to.
    std::uint32_t sliding_window = 0;
    /// speculative_type: tokens are taken back.
    bool drafts = false;
    /// Attention ops that a step has run before there was a session: those with a KV cache of their own, and those that read
    /// another one's.
    std::uint32_t caches = 0, readers = 0;
    bool is_counted = false;
    /// Of ops of linear attention, in the order in which they first ran.
    std::vector<op_state> states;

    /// Llm::load ends with a step, so that what does not work is said there; and a step that is no chat's runs.
    bool steps_at_load = false, is_trial = false;
    /// The library was looked for, and is loaded; the session was made, where there can be one.
    bool is_started = false, has_library = false;
    /// Made by attach, and the same until the next load.
    std::shared_ptr<off_state> off;

    /// There is to be a session.
    bool keeps_tokens() const { return bounds || quantises || evicts || compresses || chats; }

    /// Tokens of the windows that some layers have; 0: none has one. Hybrids have a sliding_window that is none.
    std::uint32_t window() const { return attention_type == "mix" && (bounds || quantises) ? sliding_window : 0; }

    /// History edits of these caches are mnn-kv's: MNN's own leave INT8 V wrong.
    bool edits_history() const { return keeps_tokens() && refusal().empty(); }

    static bool is_path(const std::string& value) {
        std::string path;
        return value == "\"\"" || mnnkv_host::json_path(value, path);
    }

    /// Why no session is made for these settings; "" when one can be, or a key that needs none is right.
    std::string refusal() const {
        for (const auto& member : mnnkv_host::json_members(config)) {
            const std::string &key = member.first, &value = member.second;
            if ((key == "kv_chat_enable" || key == "kv_required") && value != "true" && value != "false") {
                return key + " is " + value + "; true or false expected";
            }
            if (key == "kv_memory_base" && value != "\"\"") {
                return key + " is not for MNN: load the chat with kv_load, and save to another file";
            }
            if (key == "kv_library" && !is_path(value)) {
                return key + " is " + value + "; the path of a file expected, in UTF-8";
            }
        }
        if (!keeps_tokens()) {
            return std::string();
        }
        if (attention_type == "mix" && evicts) {
            return "attention_type is \"mix\": its masks count the tokens that kv_h2o_enable evicts; kv_memory_mb bounds such a model";
        }
        if (attention_type == "mix" && sliding_window == 0) {
            return "attention_type is \"mix\", and the config has no sliding_window";
        }
        // Of "sliding" MNN's CPU attends to all tokens, as of "full".
        if (attention_type != "full" && attention_type != "mix" && attention_type != "sliding") {
            return "attention_type is \"" + attention_type + "\", not \"full\", \"mix\" or \"sliding\"";
        }
        if (attention_mask != "float") {
            return "attention_mask is \"" + attention_mask + "\", not \"float\"";
        }
        return std::string();
    }

    /// What mnnkv_session_report writes. Empty until attention has run. Set by the side that links
    /// mnn-kv: the engine may be a library of its own, which then needs none of its symbols.
    std::function<std::string()> metrics;
    /// Tokens that a budget holds raw, as in a report. Empty and set as metrics.
    std::function<std::uint64_t()> raw_tokens;
    /// As mnnkv_session_trim, from any thread. Returns why not; "" when it is done. Empty and set as metrics.
    std::function<std::string(std::uint64_t bytes)> trim;
    /// Carries a command out; empty until attention has run. Returns false, with the reason printed, on failure.
    std::function<bool(MNN::KVMeta&, const mnnkv_host::chat_command&, chat&)> run;
    /// The chat's own file: kv_memory_file, or what was saved to or loaded last; "": none.
    std::string file;
    /// The file has a chat that went on at load, and no step has been made since; or one that did not.
    bool has_resumed = false, has_other = false;
    mnnkv_host::known_chats known_chats;
    /// Those of a session, in no order.
    std::vector<layer*> layers;
    /// Made by the first layer, where the settings say so.
    std::shared_ptr<mnnkv_host::model_session> model;
    std::shared_ptr<mnnkv_host::cache_dump> dump;
};

/// A config has keys that begin with "kv_".
inline bool names_keys(const std::string& config) {
    const auto members = mnnkv_host::json_members(config);
    return std::any_of(members.begin(), members.end(), [](const std::pair<std::string, std::string>& member) {
        return member.first.compare(0, 3, "kv_") == 0;
    });
}

#ifdef KV_PLUGIN_IMPLEMENTATION
/// Called by an op of linear attention in each step: a saved chat has its state. Clones of an op share `owner`.
void keep(host& own, const std::shared_ptr<void>& owner, std::initializer_list<MNN::Tensor*> state) {
    std::vector<op_state>& all = own.states;
    all.erase(std::remove_if(all.begin(), all.end(), [](const op_state& one) { return one.owner.expired(); }), all.end());
    if (std::any_of(all.begin(), all.end(), [&owner](const op_state& one) { return one.owner.lock() == owner; })) {
        return;
    }
    op_state made;
    made.owner = owner;
    for (MNN::Tensor* const part : state) {
        if (part != nullptr) {
            made.parts.emplace_back(part->host<char>(), static_cast<std::size_t>(part->elementSize()));
        }
    }
    all.push_back(made);
}
#endif

/// Called by the engine before its KVMeta goes to the runtime. Replaces earlier settings.
inline void attach(MNN::KVMeta& meta, const host& settings) {
    for (const std::string& fault : mnnkv_host::misspelt_keys(settings.config)) {
        MNN_PRINT("mnn-kv: %s\n", fault.c_str());
    }
    for (const auto& member : mnnkv_host::json_members(settings.config)) {
        if (member.first == "kv_dump_folder" && !host::is_path(member.second)) {
            MNN_PRINT("mnn-kv: dump off where kv_dump_folder is %s, not a path in UTF-8\n", member.second.c_str());
        }
    }
    if (!names_keys(settings.config)) {
        meta.plugin.reset();
        return;
    }
    meta.plugin.reset(new host(settings));
    meta.plugin->off = std::make_shared<off_state>();
    const std::string refusal = settings.refusal();
    if (!refusal.empty()) {
        meta.plugin->off->set(refusal);
    }
}

/// What mnn-kv can do is known after two steps, which the engine is then to make, and to forget by its reset: the first one counts
/// the caches, and the second has a session of so many.
inline bool begins_trial(host& own) {
    own.is_trial = !own.is_started && own.off->all().empty() && (!own.is_counted || own.caches > 0);
    return own.is_trial;
}

/// Called at the end of Llm::load, until it returns false.
inline bool needs_step(const MNN::KVMeta& meta) {
    host* const own = meta.plugin.get();
    return own != nullptr && own->steps_at_load && begins_trial(*own);
}

/// The model is not to run without mnn-kv, which is off.
inline bool is_refused(const MNN::KVMeta& meta) {
    host* const own = meta.plugin.get();
    if (own != nullptr && own->steps_at_load && own->keeps_tokens() && !own->is_started && own->off->all().empty()) {
        own->off->set("no KV cache is MNN's CPU backend's");
    }
    return own != nullptr && own->required && !own->off->all().empty();
}

/// The chat's tokens before a step, after its edit of the history.
inline std::uint64_t position_of(const MNN::KVMeta& meta) {
    std::uint64_t position = meta.previous - meta.remove;
    for (int i = 0; i < meta.n_reserve; ++i) {
        position += static_cast<std::uint64_t>(meta.reserve[2 * i + 1]);
    }
    return position;
}

/// While it lives MNN's chunk is one for the next `tokens` tokens: 256 where it has none, and the budget does not hold the chat
/// raw. In a prompt a budget is exceeded by a chunk.
class prompt_chunk {
public:
    enum { most = 256 };

    prompt_chunk(const MNN::KVMeta& meta, int& chunk, std::size_t tokens) : chunk_(chunk), engine_(chunk) {
        if (chunk == 0 && tokens > most && meta.plugin && exceeds(*meta.plugin, meta, tokens)) {
            chunk = most;
        }
    }
    ~prompt_chunk() { chunk_ = engine_; }
    prompt_chunk(const prompt_chunk&) = delete;
    prompt_chunk& operator=(const prompt_chunk&) = delete;

private:
    static bool exceeds(const host& own, const MNN::KVMeta& meta, std::size_t tokens) {
        if (!own.bounds || !own.off->all().empty() || (!meta.file_name.empty() && meta.file_flag != MNN::KVMeta::NoChange)) {
            return false;
        }
        return position_of(meta) + tokens > (own.raw_tokens ? own.raw_tokens() : 0);
    }

    int& chunk_;
    const int engine_;
};

/// The report of the model's session, with "off" where mnn-kv does nothing, or nothing for a cache; "" when nothing is to be
/// done.
inline std::string metrics(const MNN::KVMeta& meta) {
    if (!meta.plugin) {
        return std::string();
    }
    const host& own = *meta.plugin;
    const std::string all = own.off->all(), some = own.off->some();
    const std::string off = "{\"off\":" + mnnkv_host::json_quoted(some);
    if (!all.empty()) {
        return off + ",\"memory\":{\"state\":\"off\"}}";
    }
    const std::string text = own.metrics ? own.metrics() : std::string();
    return text.empty() || some.empty() ? text : off + "," + text.substr(1);
}

/// MNN's code of a failure.
inline MNN::ErrorCode error_of(mnnkv_status code) {
    switch (code) {
        case MNNKV_OK:
            return MNN::NO_ERROR;
        case MNNKV_OUT_OF_MEMORY:
            return MNN::OUT_OF_MEMORY;
        case MNNKV_UNSUPPORTED:
            return MNN::NOT_SUPPORT;
        case MNNKV_CORRUPT:
            return MNN::INPUT_DATA_ERROR;
        case MNNKV_IO:
            return MNN::FILE_OPEN_FAILED;
        default:
            return MNN::INVALID_VALUE;
    }
}

}  // namespace kv_plugin

#endif  // KV_PLUGIN_HOST_HPP
