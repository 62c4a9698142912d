// mnn-kv inside Alibaba MNN: what the LLM engine sets for a model, and its codes of failures. Included by kv_plugin.hpp.

#ifndef KV_PLUGIN_HOST_HPP
#define KV_PLUGIN_HOST_HPP

#include <MNN/ErrorCode.hpp>
#include <MNN/MNNDefine.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/KVMeta.hpp"
#include "mnnkv_dump.hpp"
#include "mnnkv_host.hpp"
#include "mnnkv_json.hpp"
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
            required = required || (key == "kv_required" && value == "true");
            if (key == "kv_dump_folder") {
                (void)mnnkv_host::json_path(value, dump_folder);
            } else if (key == "kv_library") {
                (void)mnnkv_host::json_path(value, library);
            }
        }
    }

    std::string config;
    /// kv_memory_mb or _bytes, kv_quant, kv_h2o_enable, kv_lossless_enable and kv_chat_enable: with none no session is made.
    bool bounds = false, quantises = false, evicts = false, compresses = false, chats = false;
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

    /// Wrong keys of a config that switches nothing on are printed.
    bool is_checked = false;
    /// The library was looked for, and there is none.
    bool is_sought = false, is_missing = false;

    /// There is to be a session.
    bool keeps_tokens() const { return bounds || quantises || evicts || compresses || chats; }

    /// History edits of these caches are mnn-kv's: MNN's own leave INT8 V wrong.
    bool edits_history() const { return keeps_tokens() && refusal().empty(); }

    static bool is_path(const std::string& value) {
        std::string path;
        return value == "\"\"" || mnnkv_host::json_path(value, path);
    }

    /// Why no session is made for these settings; "" when one can be.
    std::string refusal() const {
        for (const auto& member : mnnkv_host::json_members(config)) {
            const std::string &key = member.first, &value = member.second;
            if ((key == "kv_chat_enable" || key == "kv_required") && value != "true" && value != "false") {
                return key + " is " + value + "; true or false expected";
            }
            if (key == "kv_library" && !is_path(value)) {
                return key + " is " + value + "; the path of a file expected, in UTF-8";
            }
        }
        if (attention_type != "full") {
            return "attention_type is \"" + attention_type + "\", not \"full\"";
        }
        if (attention_mask != "float") {
            return "attention_mask is \"" + attention_mask + "\", not \"float\"";
        }
        return std::string();
    }

    /// Metrics as mnnkv_session_metrics_json writes them. Empty until attention has run. Set by the side that links
    /// mnn-kv: the engine may be a library of its own, which then needs none of its symbols.
    std::function<std::string()> metrics;
    /// As mnnkv_session_trim, from any thread. Returns why not; "" when it is done. Empty and set as metrics.
    std::function<std::string(std::uint64_t bytes)> trim;
    /// Carries a command out; empty until attention has run. Returns false, with the reason printed, on failure.
    std::function<bool(MNN::KVMeta&, const mnnkv_host::chat_command&, chat&)> run;
    /// That of this moment, which any thread may interrupt: made by attach, and the same until the next load.
    std::shared_ptr<mnnkv_host::running_command> running;
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

/// Called by the engine before its KVMeta goes to the runtime. Replaces earlier settings.
inline void attach(MNN::KVMeta& meta, const host& settings) {
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
    meta.plugin->running = std::make_shared<mnnkv_host::running_command>();
}

/// The config's own chunk where it has a budget and none: in a prompt the budget is exceeded by a chunk.
inline bool wants_chunk(const MNN::KVMeta& meta, int chunk) { return chunk == 0 && meta.plugin && meta.plugin->bounds; }

/// The model's metrics as JSON; "" when nothing is compressed.
inline std::string metrics(const MNN::KVMeta& meta) {
    return meta.plugin && meta.plugin->metrics ? meta.plugin->metrics() : std::string();
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
