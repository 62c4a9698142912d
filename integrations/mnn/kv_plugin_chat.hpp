// Commands of Llm::set_config for the chat of a model: saved to a file, loaded from one, taken out of memory. Included by
// kv_plugin.hpp.

#ifndef KV_PLUGIN_CHAT_HPP
#define KV_PLUGIN_CHAT_HPP

#include <cstring>
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
        meta.plugin->is_counted = true;
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
    return own != nullptr && own->keeps_tokens() && !own->run &&
           mnnkv_host::chat_command::read(content).what == mnnkv_host::chat_command::load && begins_trial(*own);
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

/// Called at the end of Llm::load, after the step: the chat of kv_memory_file goes on, if there is one. Returns whether the model
/// is not to run, as the other is_refused. context, prompt: as of command.
template <class Context>
bool is_refused(MNN::KVMeta& meta, Context& context, std::string& prompt) {
    host* const own = meta.plugin.get();
    if (own != nullptr && own->run && !own->file.empty() && own->off->all().empty()) {
        mnnkv_host::chat_command resume;
        resume.what = mnnkv_host::chat_command::resume;
        resume.path = own->file;
        chat of(context, prompt);
        (void)own->run(meta, resume, of);
    }
    return is_refused(meta);
}

/// Carries a command out, between steps. Returns false, with the reason printed, on failure. kv_trim_mb may come from any thread
/// once the model has made a step. Where mnn-kv is off no command is carried out.
/// context: MNN's LlmContext; prompt: the text that its prompt cache compares.
template <class Context>
bool command(const std::string& content, MNN::KVMeta& meta, Context& context, std::string& prompt) {
    const mnnkv_host::chat_command given = mnnkv_host::chat_command::read(content);
    const std::string off = meta.plugin ? meta.plugin->off->all() : std::string();
    std::string why = given.refusal.empty() && !off.empty() ? "the command is not carried out: off where " + off : given.refusal;
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

    bool run(const mnnkv_host::chat_command& given) {
        typedef mnnkv_host::chat_command what;
        std::string why = gap();
        if (why.empty()) {
            why = given.what == what::save ? save(given) : given.what == what::park ? park() : load(given.path);
        }
        if (given.what == what::resume) {
            if (found_.code() == MNNKV_NOT_FOUND) {
                return true;  // nothing was saved there yet
            }
            of_.has_resumed = why.empty();
            of_.has_other = !why.empty();
            if (model_.memory("file_bytes") == 0) {
                return false;  // a warning of the session has said why
            }
        }
        if (!why.empty()) {
            model_.say(given.what == what::resume ? "the chat of kv_memory_file does not go on, and stays there: " + why
                       : given.what == what::save ? "the chat is not saved: " + why
                       : given.what == what::load ? "the chat is not loaded: " + why
                                                  : "the chat is not parked: " + why);
        }
        return why.empty();
    }

private:
    /// Blocks go to the file, and come back as they are used. Raw tokens stay.
    std::string park() {
        const std::uint64_t budget = model_.memory("budget_bytes");
        if (budget == 0 || model_.memory("file_bytes") == 0) {
            return "it has no kv_memory_mb, or no file that blocks can go to; kv_save, and then kv_load of the same file, return "
                   "the memory of its cache";
        }
        mnnkv::status done = model_.session.trim(0);
        done = done ? model_.session.trim(budget) : done;
        model_.trim();
        return done.message();
    }

    std::string save(const mnnkv_host::chat_command& given) {
        if (meta_.previous == meta_.remove) {
            return "it is empty";
        }
        std::vector<mnnkv_cache> caches(of_.layers.size());
        std::string why = missing_layers();
        for (layer* own : of_.layers) {
            why = why.empty() ? own->make_ready(meta_, caches[own->steps_->number()]) : why;
        }
        if (!why.empty()) {
            return why;
        }
        const mnnkv_host::chat_state state = this->state();
        const bool is_own = given.path == of_.file;
        // The session has its own file open, where that could be made.
        const bool replaces = !is_own || (of_.has_other && model_.memory("file_bytes") == 0);
        why = replaces ? conflict(given.path, state) : "";
        if (given.overwrites) {
            why = found_.code() == MNNKV_BUSY ? why : "";
        } else if (is_own) {
            why = of_.has_other ? given.path + " holds another chat" + mnnkv_host::overwrite_hint() : "";
        }
        std::unique_ptr<mnnkv_host::file_aside> before;
        if (why.empty() && replaces) {
            before.reset(new mnnkv_host::file_aside(given.path));
            why = before->refusal;
        }
        if (!why.empty()) {
            return why;
        }
        // The session has a file from its first save on, also where that fails.
        of_.file = of_.file.empty() ? given.path : of_.file;
        mnnkv::status saved = state.put(model_.session);
        const std::string recurrent = this->recurrent();
        saved = saved && !recurrent.empty() ? model_.session.put("chat.recurrent", recurrent.data(), recurrent.size()) : saved;
        saved = saved ? model_.save(given.path, caches) : saved;
        if (!saved) {
            return saved.message();
        }
        if (before) {
            before->drop();
        }
        of_.file = given.path;
        of_.has_other = false;
        of_.known_chats.remember(given.path, state);
        return std::string();
    }

    /// Why a save of the chat to a file that is not its own would overwrite another one; "" if it would not.
    std::string conflict(const std::string& path, const mnnkv_host::chat_state& chat) {
        mnnkv::session other;
        mnnkv_host::chat_state found;
        found_ = model_.open_beside(path, other);
        const mnnkv_status code = found_.code();
        if (code == MNNKV_NOT_FOUND) {
            return "";
        }
        std::string why = found_ ? found.get(other) : reason(path);
        why = why.empty() ? of_.known_chats.conflict(path, found, chat) : why;
        const bool is_other = code != MNNKV_BUSY && code != MNNKV_OUT_OF_MEMORY && code != MNNKV_IO;
        return why.empty() || !is_other ? why : why + mnnkv_host::overwrite_hint();
    }

    std::string load(const std::string& path) {
        for (layer* own : of_.layers) {
            mnnkv_cache cache = own->see_();
            own->steps_->settle(counts_of(meta_), cache);
            own->set_length_(cache.kv_len);
        }
        mnnkv_host::chat_state state;
        found_ = model_.session.open(path.c_str());
        if (!found_) {
            return reason(path);
        }
        of_.file = path;
        of_.has_other = false;
        std::string why = state.get(model_.session);
        why = why.empty() ? take_recurrent() : why;
        if (!why.empty()) {
            (void)model_.session.reset_all();
            state = mnnkv_host::chat_state();
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
        return why.empty() ? "" : path + ": " + why + "; a new chat begins";
    }

    /// Why a file was not opened.
    std::string reason(const std::string& path) const {
        return found_.code() != MNNKV_STALE
                   ? found_.message()
                   : path + " is of another model, attention_mode or precision: llm_model, llm_weight and these two must be "
                            "those that it was saved with";
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
            mnnkv_cache cache = own.see_();
            cache.kv_len = 0;
            if (cache.key != nullptr) {
                mnnkv_host::release_tail(cache);
            }
            own.center_ = state.extra.substr(std::min(center, state.extra.size()), own.center_bytes_);
            center += own.center_bytes_;
            own.steps_->loaded();
            own.is_loaded_ = own.on_ = true;
            own.pending_ = false;
        }
        model_.trim();
    }

    mnnkv_host::chat_state state() {
        mnnkv_host::chat_state state;
        state.previous = meta_.previous;
        state.remove = meta_.remove;
        state.reserve.assign(meta_.reserve, meta_.reserve + 2 * meta_.n_reserve);
        state.positions = static_cast<std::uint64_t>(chat_.positions);
        state.tokens = chat_.tokens();
        state.prompt = chat_.prompt;
        for (std::uint32_t number = 0; number < of_.layers.size(); ++number) {
            const layer& own = numbered(number);
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
        const std::size_t known = of_.layers.size() + of_.readers + of_.states.size();
        for (const auto& member : mnnkv_host::json_members(of_.config)) {
            double layers = 0;
            if (member.first == "layer_nums" && mnnkv_host::json_number(member.second, layers) &&
                layers != static_cast<double>(known)) {
                return "the model has " + member.second + " layers, and " + std::to_string(known) +
                       " of them have a KV cache or linear attention: what the others remember cannot be saved";
            }
        }
        return std::string();
    }

    /// The states of linear attention, one behind the other; "" without any.
    std::string recurrent() const {
        std::string bytes;
        each_state([&bytes](char* part, std::size_t size) { bytes.append(part, size); });
        return bytes;
    }

    /// Takes those of a chat that was opened. Returns why they cannot be used; "" if they can.
    std::string take_recurrent() {
        std::size_t expected = 0;
        each_state([&expected](char*, std::size_t size) { expected += size; });
        std::string bytes;
        const mnnkv::status read = expected > 0 ? model_.session.get("chat.recurrent", bytes) : mnnkv::status(MNNKV_OK);
        if (!read || bytes.size() != expected) {
            return "it has " + std::to_string(bytes.size()) + " bytes of states of linear attention; " + std::to_string(expected) +
                   " expected";
        }
        const char* from = bytes.data();
        each_state([&from](char* part, std::size_t size) {
            std::memcpy(part, from, size);
            from += size;
        });
        return std::string();
    }

    template <class Visit>
    void each_state(Visit visit) const {
        for (const op_state& state : of_.states) {
            const std::shared_ptr<void> alive = state.owner.lock();
            for (const auto& part : state.parts) {
                if (alive) {
                    visit(part.first, part.second);
                }
            }
        }
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

    host& of_;
    mnnkv_host::model_session& model_;
    MNN::KVMeta& meta_;
    chat& chat_;
    /// Of the file that was opened last.
    mnnkv::status found_;
};

/// Another chat begins.
inline void layer::begin_chat() {
    host_->known_chats.forget();
    if (host_->has_resumed) {
        host_->has_resumed = false;
        host_->has_other = true;
        model().say("the chat of kv_memory_file does not go on, since another one begins; it stays in " + host_->file);
    }
}

/// Makes the layer ready for a save of all, and sets its cache. Returns why it cannot be saved; "" if it can.
inline std::string layer::make_ready(const MNN::KVMeta& meta, mnnkv_cache& cache) {
    if (!has_tokens()) {
        return "layer " + std::to_string(steps_->number()) + " has no tokens that mnn-kv may read";
    }
    cache = see_();
    if (is_loaded_) {
        cache = mnnkv::make<mnnkv_cache>();
        cache.kv_len = steps_->length();
        return std::string();
    }
    const mnnkv::status ready = steps_->ready(counts_of(meta), cache);
    set_length_(cache.kv_len);
    return ready.message();
}

inline void layer::take_commands() {
    host* const of = host_.get();
    of->layers.push_back(this);
    of->run = [of](MNN::KVMeta& meta, const mnnkv_host::chat_command& what, chat& chat) {
        return commands(*of, meta, chat).run(what);
    };
}

}  // namespace kv_plugin

#endif  // KV_PLUGIN_CHAT_HPP
