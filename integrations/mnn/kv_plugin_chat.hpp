// Commands of Llm::set_config for the chat of a model: parked, saved to a file, loaded from one. Included by
// kv_plugin.hpp.

#ifndef KV_PLUGIN_CHAT_HPP
#define KV_PLUGIN_CHAT_HPP

#include <mutex>
#include <string>
#include <vector>

#include "kv_plugin.hpp"

namespace kv_plugin {

/// The chat in the LLM engine, which loading a file replaces.
class chat {
public:
    /// context: MNN's LlmContext. In later versions a mutex guards its history_tokens, which other threads may read.
    template <class Context>
    chat(Context& context, std::string& cached_prompt)
        : positions(context.all_seq_len), prompt(cached_prompt), tokens_(context.history_tokens),
          mutex_(mutex_of(context, 0)), leave_error_([&context] { leave_error(context); }) {}

    int& positions;
    std::string& prompt;

    std::vector<int> tokens() const {
        const std::unique_lock<std::mutex> guard = lock();
        return tokens_;
    }

    void set_tokens(std::vector<int> tokens) {
        const std::unique_lock<std::mutex> guard = lock();
        tokens_.swap(tokens);
    }

    /// The Llm answers again after a step that failed.
    void leave_error() const { leave_error_(); }

    template <class Context>
    static void leave_error(Context& context) {
        typedef decltype(context.status) status;
        if (context.status != status::NOT_LOADED) {
            context.status = status::RUNNING;
        }
    }

private:
    template <class Context>
    static auto mutex_of(Context& context, int) -> decltype(&context.mutex) {
        return &context.mutex;
    }
    template <class Context>
    static std::mutex* mutex_of(Context&, long) {
        return nullptr;
    }

    std::unique_lock<std::mutex> lock() const {
        return mutex_ == nullptr ? std::unique_lock<std::mutex>() : std::unique_lock<std::mutex>(*mutex_);
    }

    std::vector<int>& tokens_;
    std::mutex* mutex_;
    std::function<void()> leave_error_;
};

/// Called by Llm::reset: the Llm has another chat from now on, and answers again after a step that failed. A step that was no
/// chat's has not been.
template <class Context>
void reset(MNN::KVMeta& meta, Context& context) {
    if (meta.plugin && (meta.plugin->keeps_tokens() || meta.plugin->is_trial)) {
        meta.plugin->known_chats.forget();
        chat::leave_error(context);
    }
    if (meta.plugin && meta.plugin->is_trial) {
        meta.plugin->is_trial = false;
        meta.previous = meta.remove = 0;
    }
}

/// `content` of Llm::set_config is a command (kv_park, kv_save, kv_load or kv_trim_mb), which is not part of the config.
inline bool is_command(const std::string& content) {
    return mnnkv_host::chat_command::read(content).what != mnnkv_host::chat_command::none;
}

/// The command loads a chat, and no step has made the model's caches yet: as the other needs_step.
inline bool needs_step(const std::string& content, const MNN::KVMeta& meta) {
    host* const own = meta.plugin.get();
    const bool needs = own != nullptr && own->keeps_tokens() && !own->run && own->off->all().empty() &&
                       mnnkv_host::chat_command::read(content).what == mnnkv_host::chat_command::load;
    if (needs) {
        own->is_trial = true;
    }
    return needs;
}

/// Prints what has no effect in a config that Llm::set_config gets once the model is loaded.
template <class Context>
void check_late_keys(const std::string& content, const Context& context) {
    typedef decltype(context.status) status;
    std::string first;
    std::size_t count = 0;
    for (const auto& member : mnnkv_host::json_members(content)) {
        if (context.status != status::NOT_LOADED && member.first.compare(0, 3, "kv_") == 0) {
            first = count++ == 0 ? member.first : first;
        }
    }
    if (count > 0) {
        const std::string keys = first + (count > 1 ? " and " + std::to_string(count - 1) + " more have" : " has");
        MNN_PRINT("mnn-kv: %s no effect now: keys are read when the model is loaded, and %s are the commands\n",
                  keys.c_str(), mnnkv_host::command_keys());
    }
}

/// Carries a command out, between steps. Returns false, with the reason printed, on failure. {"kv_park": false} may come
/// from any thread once the model is loaded; it ends a park or save that runs, and does nothing else. kv_trim_mb may come from
/// any thread once the model has made a step. Where mnn-kv is off no command is carried out.
/// context: MNN's LlmContext; prompt: the text that its prompt cache compares.
template <class Context>
bool command(const std::string& content, MNN::KVMeta& meta, Context& context, std::string& prompt) {
    const mnnkv_host::chat_command given = mnnkv_host::chat_command::read(content);
    const std::string off = meta.plugin ? meta.plugin->off->all() : std::string();
    std::string why = given.refusal.empty() && !off.empty() ? "the command is not carried out: off where " + off : given.refusal;
    if (why.empty() && given.what == mnnkv_host::chat_command::interrupt && meta.plugin) {
        meta.plugin->running->interrupt();
        return true;
    }
    if (why.empty() && given.what == mnnkv_host::chat_command::trim && meta.plugin && meta.plugin->trim) {
        why = meta.plugin->trim(static_cast<std::uint64_t>(given.megabytes * 1e6));
        if (!why.empty()) {
            MNN_ERROR("mnn-kv: the budget is not changed: %s\n", why.c_str());
        }
        return why.empty();
    }
    if (why.empty() && (!meta.plugin || !meta.plugin->keeps_tokens())) {
        why = std::string(mnnkv_host::command_keys()) +
              " need kv_chat_enable or a budget in the config that the model is loaded with";
    } else if (why.empty() && !meta.plugin->run) {
        why = std::string(mnnkv_host::command_keys()) + " need a model that has made a step on the CPU";
    }
    if (!why.empty()) {
        MNN_ERROR("mnn-kv: %s\n", why.c_str());
        return false;
    }
    chat of(context, prompt);
    return meta.plugin->run(meta, given, of);
}

class layer::commands {
public:
    commands(host& of, MNN::KVMeta& meta, chat& chat) : of_(of), model_(*of.model), meta_(meta), chat_(chat) {}

    bool run(const mnnkv_host::chat_command& what) {
        const bool saves = what.what == mnnkv_host::chat_command::save;
        const bool loads = what.what == mnnkv_host::chat_command::load;
        std::string why = gap();
        bool interrupted = false;
        if (why.empty()) {
            of_.running->start(model_.session);
            why = saves ? save(what) : loads ? load(what.path) : park(what.effort);
            interrupted = of_.running->stop() && is_busy_;
        }
        if (!why.empty() && !interrupted) {
            model_.say("the chat is not " + std::string(saves ? "saved: " : loads ? "loaded: " : "parked: ") + why);
        }
        return why.empty();
    }

private:
    /// Layers that mnn-kv leaves alone stay as they are, and those whose tokens are in a file.
    std::string park(int effort) {
        mnnkv::status parked;
        for (layer* own : of_.layers) {
            if (parked && own->has_tokens() && !own->is_loaded_) {
                mnnkv_cache cache = own->see_();
                mnnkv_park_options options = mnnkv::make<mnnkv_park_options>();
                options.effort = effort;
                parked = own->steps_->park(counts_of(meta_), options, cache);
                own->set_length_(cache.kv_len);
            }
        }
        const std::string why = parked.message();
        is_busy_ = parked.code() == MNNKV_BUSY;
        model_.trim();
        return why;
    }

    std::string save(const mnnkv_host::chat_command& what) {
        for (const layer* own : of_.layers) {
            if (!own->has_tokens()) {
                return "layer " + std::to_string(own->steps_->number()) + " has no tokens that mnn-kv may read";
            }
        }
        if (meta_.previous == meta_.remove) {
            return "it is empty";
        }
        const std::string missing = missing_layers();
        if (!missing.empty()) {
            return missing;
        }
        mnnkv_host::chat_file file;
        const std::string closed = open_to_save(file, what);
        if (!closed.empty()) {
            return closed;
        }
        mnnkv_host::chat_state state = this->state();
        const std::string conflict = of_.known_chats.conflict(what.path, file, state);
        if (!what.overwrites && !conflict.empty()) {
            return conflict;
        }
        mnnkv::status saved;
        for (layer* own : of_.layers) {
            if (saved) {
                const mnnkv_cache seen = own->see_();
                const mnnkv_park_options options = mnnkv::make<mnnkv_park_options>();
                mnnkv_cache cache = own->is_loaded_ ? mnnkv::make<mnnkv_cache>() : seen;
                cache.kv_len = own->is_loaded_ ? own->steps_->length() : cache.kv_len;
                saved = own->steps_->save(counts_of(meta_), file.snapshot(), options, cache);
                if (!own->is_loaded_) {
                    own->set_length_(cache.kv_len);
                }
            }
        }
        is_busy_ = saved.code() == MNNKV_BUSY;
        saved = saved ? state.put(file.snapshot()) : saved;
        const std::string why = saved ? file.commit() : saved.message();
        if (why.empty()) {
            of_.known_chats.remember(what.path, state);
        }
        return why;
    }

    std::string load(const std::string& path) {
        mnnkv_host::chat_file file;
        mnnkv_host::chat_state state;
        const mnnkv::status opened = file.open_to_read(path, fingerprint());
        std::string why = opened ? state.get(file.snapshot()) : reason(path, opened);
        if (why.empty() && state.layers != of_.layers.size()) {
            why = path + " has " + std::to_string(state.layers) + " layers, the model " +
                  std::to_string(of_.layers.size());
        }
        std::size_t center = 0;
        for (std::size_t at = 0; at < of_.layers.size() && why.empty(); ++at) {
            why = misfit(state, static_cast<std::uint32_t>(at), center);
        }
        if (why.empty() && center != state.extra.size()) {
            why = path + " is of a cache whose INT8 K has another centre: attention_mode must be that of the save";
        }
        if (!why.empty()) {
            return why.find(path) == std::string::npos ? path + ": " + why : why;
        }
        for (layer* own : of_.layers) {
            mnnkv_cache cache = own->see_();
            own->steps_->settle(counts_of(meta_), cache);
            own->set_length_(cache.kv_len);
        }
        const mnnkv::status loaded = file.snapshot().load(model_.session);
        if (!loaded) {
            return loaded.message();
        }
        take(state);
        of_.known_chats.forget();
        of_.known_chats.remember(path, state);
        chat_.leave_error();
        const std::uint64_t dropped = model_.memory("dropped_tokens");
        if (dropped > 0) {
            model_.say(path + " is a chat that has dropped tokens to hold its budget: " + std::to_string(dropped) +
                       ", over all layers, which the model no longer sees");
        }
        return std::string();
    }

    /// Why the file of a save was not opened; "" if it was.
    std::string open_to_save(mnnkv_host::chat_file& file, const mnnkv_host::chat_command& what) const {
        if (what.overwrites) {
            return file.open_to_replace(what.path, fingerprint());
        }
        const mnnkv::status opened = file.open_to_save(what.path, fingerprint());
        const bool is_other = opened.code() != MNNKV_BUSY && opened.code() != MNNKV_OUT_OF_MEMORY && opened.code() != MNNKV_IO;
        return opened ? std::string() : reason(what.path, opened) + (is_other ? mnnkv_host::overwrite_hint() : "");
    }

    /// Why a file was not opened.
    static std::string reason(const std::string& path, const mnnkv::status& opened) {
        return opened.code() == MNNKV_STALE ? path + " is of another model: llm_model or llm_weight is another file"
                                            : opened.message();
    }

    /// Why a layer of a file cannot be this model's; "" if it can. Adds the size of its centre to `center`.
    std::string misfit(const mnnkv_host::chat_state& state, std::uint32_t number, std::size_t& center) {
        layer& own = numbered(number);
        const std::string why = own.object_();
        if (!why.empty()) {
            return why;
        }
        const mnnkv_cache cache = own.see_();
        const mnnkv_layout& layout = *cache.layout;
        center += own.center_bytes_;
        const auto first = state.shapes.begin() + 4 * static_cast<std::ptrdiff_t>(number);
        const std::vector<int> saved(first, first + 4), here = shape_of(layout);
        return saved == here ? "" : "the file has " + text_of(saved) + ", the model " + text_of(here) +
               " in layer " + std::to_string(number) + ": attention_mode and precision must be those that it was saved with";
    }

    /// As chat_state::shapes has it.
    static std::vector<int> shape_of(const mnnkv_layout& layout) {
        return {static_cast<int>(layout.key_dtype), static_cast<int>(layout.value_dtype),
                static_cast<int>(layout.kv_heads), static_cast<int>(layout.head_dim)};
    }

    static std::string text_of(const std::vector<int>& shape) {
        static const char* const names[] = {"unknown", "f16", "bf16", "f32", "INT8", "TQ3", "TQ4"};
        const auto name = [](int dtype) { return std::string(names[dtype > 0 && dtype <= 6 ? dtype : 0]); };
        return "K " + name(shape[0]) + " and V " + name(shape[1]) + " of " + std::to_string(shape[2]) + " heads of " +
               std::to_string(shape[3]);
    }

    /// Puts a loaded chat in the place of the engine's.
    void take(const mnnkv_host::chat_state& state) {
        meta_.previous = static_cast<std::size_t>(state.previous);
        meta_.remove = static_cast<std::size_t>(state.remove);
        meta_.add = 0;
        meta_.reserveHost = state.reserve;
        meta_.n_reserve = static_cast<int>(state.reserve.size() / 2);
        meta_.reserve = state.reserve.empty() ? nullptr : meta_.reserveHost.data();
        chat_.positions = static_cast<int>(state.positions);
        chat_.set_tokens(state.tokens);
        chat_.prompt = state.prompt;
        std::size_t center = 0;
        for (std::uint32_t number = 0; number < of_.layers.size(); ++number) {
            layer& own = numbered(number);
            const std::size_t bytes = own.center_bytes_;
            own.center_ = state.extra.substr(center, bytes);
            center += bytes;
            own.steps_->loaded();
            own.is_loaded_ = own.on_ = true;
            own.pending_ = false;
        }
    }

    mnnkv_host::chat_state state() {
        mnnkv_host::chat_state state;
        state.layers = of_.layers.size();
        state.previous = meta_.previous;
        state.remove = meta_.remove;
        state.reserve.assign(meta_.reserve, meta_.reserve + 2 * meta_.n_reserve);
        state.positions = static_cast<std::uint64_t>(chat_.positions);
        state.tokens = chat_.tokens();
        state.prompt = chat_.prompt;
        for (std::uint32_t number = 0; number < of_.layers.size(); ++number) {
            layer& own = numbered(number);
            const mnnkv_layout& layout = *own.see_().layout;
            for (const int part : shape_of(layout)) {
                state.shapes.push_back(part);
            }
            if (own.is_loaded_) {
                state.extra += own.center_;
            } else {
                state.extra.append(own.center_at_, own.center_bytes_);
            }
        }
        return state;
    }

    /// Why the layers that mnn-kv sees are not all of the model's; "" if they are, or the config does not say.
    std::string missing_layers() const {
        for (const auto& member : mnnkv_host::json_members(of_.config)) {
            double layers = 0;
            if (member.first == "layer_nums" && mnnkv_host::json_number(member.second, layers) &&
                layers != static_cast<double>(of_.layers.size())) {
                return "the model has " + member.second + " layers and " + std::to_string(of_.layers.size()) +
                       " caches of their own: what the others remember cannot be saved";
            }
        }
        return std::string();
    }

    /// Why the numbers of the layers are not those from 0 on; "" if they are.
    std::string gap() const {
        for (const layer* own : of_.layers) {
            if (own->steps_->number() >= of_.layers.size()) {
                return "a layer has made no step since its module was loaded";
            }
        }
        return std::string();
    }

    layer& numbered(std::uint32_t number) {
        const auto has_number = [number](const layer* own) { return own->steps_->number() == number; };
        return **std::find_if(of_.layers.begin(), of_.layers.end(), has_number);
    }

    std::string fingerprint() const { return mnnkv_host::fingerprint_of(of_.model_files); }

    host& of_;
    mnnkv_host::model_session& model_;
    MNN::KVMeta& meta_;
    chat& chat_;
    /// The command ended as an interrupt ends it.
    bool is_busy_ = false;
};

inline void layer::take_commands() {
    host* const of = host_.get();
    of->layers.push_back(this);
    of->run = [of](MNN::KVMeta& meta, const mnnkv_host::chat_command& what, chat& chat) {
        return commands(*of, meta, chat).run(what);
    };
}

}  // namespace kv_plugin

#endif  // KV_PLUGIN_CHAT_HPP
