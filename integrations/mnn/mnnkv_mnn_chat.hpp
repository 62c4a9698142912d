// Commands of Llm::set_config for the chat of a model: parked, saved to a file, loaded from one. Included by
// mnnkv_mnn.hpp.

#ifndef MNNKV_MNN_CHAT_HPP
#define MNNKV_MNN_CHAT_HPP

#include "mnnkv_mnn.hpp"

namespace mnnkv_mnn {

/// `content` of Llm::set_config is a command (kv_park, kv_save or kv_load), which is not part of the config.
inline bool is_command(const std::string& content) {
    return mnnkv_host::chat_command::read(content).what != mnnkv_host::chat_command::none;
}

/// The command loads a chat, and no step has made the model's caches yet.
inline bool needs_step(const std::string& content, const MNN::KVMeta& meta) {
    return meta.mnnkv && meta.mnnkv->keeps_tokens() && !meta.mnnkv->run &&
           mnnkv_host::chat_command::read(content).what == mnnkv_host::chat_command::load;
}

/// Carries a command out, between steps. Returns false, with the reason printed, on failure. {"kv_park": false} may come
/// from any thread.
inline bool command(const std::string& content, MNN::KVMeta& meta, const chat& of) {
    const mnnkv_host::chat_command given = mnnkv_host::chat_command::read(content);
    std::string why = given.refusal;
    if (why.empty() && (!meta.mnnkv || !meta.mnnkv->keeps_tokens())) {
        why = "kv_park, kv_save and kv_load need kv_chat_enable in the config that the model is loaded with";
    } else if (why.empty() && !meta.mnnkv->run) {
        why = "kv_park, kv_save and kv_load need a model that has made a step on the CPU";
    }
    if (!why.empty()) {
        MNN_ERROR("mnn-kv: %s\n", why.c_str());
        return false;
    }
    return meta.mnnkv->run(meta, given, of);
}

class layer::commands {
public:
    commands(host& of, MNN::KVMeta& meta, const chat& chat) : of_(of), model_(*of.model), meta_(meta), chat_(chat) {}

    bool run(const mnnkv_host::chat_command& what) {
        if (what.what == mnnkv_host::chat_command::interrupt) {
            return model_.session && model_.session.interrupt();
        }
        const bool saves = what.what == mnnkv_host::chat_command::save;
        const bool loads = what.what == mnnkv_host::chat_command::load;
        std::string why = model_.session ? gap() : model_.refusal;
        if (why.empty()) {
            why = saves ? save(what.path) : loads ? load(what.path) : park(what.effort);
        }
        if (!why.empty() && !is_interrupted_) {
            model_.say("the chat is not " + std::string(saves ? "saved: " : loads ? "loaded: " : "parked: ") + why);
        }
        return why.empty();
    }

private:
    /// Layers that mnn-kv leaves alone stay as they are, and those whose tokens are in a file.
    std::string park(int effort) {
        mnnkv_park_options options = mnnkv_host::parking_options(of_.config);
        options.effort = effort;
        mnnkv::status parked;
        for (layer* own : of_.layers) {
            if (parked && own->has_tokens() && !own->is_loaded_) {
                mnnkv_cache cache = own->see_();
                parked = own->steps_->park(counts_of(meta_), options, cache);
                own->set_length_(cache.kv_len);
            }
        }
        const std::string why = parked.message();
        is_interrupted_ = parked.code() == MNNKV_BUSY;
        model_.trim();
        return why;
    }

    std::string save(const std::string& path) {
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
        const mnnkv_park_options options = mnnkv_host::parking_options(of_.config);
        mnnkv_host::chat_file file;
        mnnkv::status saved = file.open_to_save(path, fingerprint());
        for (layer* own : of_.layers) {
            if (saved) {
                mnnkv_cache cache = own->is_loaded_ ? mnnkv::make<mnnkv_cache>() : own->see_();
                cache.kv_len = own->is_loaded_ ? own->steps_->length() : cache.kv_len;
                saved = own->steps_->save(counts_of(meta_), file.snapshot(), options, cache);
                if (!own->is_loaded_) {
                    own->set_length_(cache.kv_len);
                }
            }
        }
        saved = saved ? state().put(file.snapshot()) : saved;
        saved = saved ? file.commit() : saved;
        return saved.message();
    }

    std::string load(const std::string& path) {
        mnnkv_host::chat_file file;
        mnnkv_host::chat_state state;
        const mnnkv::status opened = file.open_to_read(path, fingerprint());
        std::string why = opened ? state.get(file.snapshot()) : opened.message();
        if (why.empty() && state.layers != of_.layers.size()) {
            why = path + " has " + std::to_string(state.layers) + " layers, the model " +
                  std::to_string(of_.layers.size());
        }
        std::size_t center = 0;
        for (std::size_t at = 0; at < of_.layers.size() && why.empty(); ++at) {
            why = misfit(file.snapshot(), static_cast<std::uint32_t>(at), center);
        }
        if (why.empty() && center != state.extra.size()) {
            why = path + " is of a cache of another type";
        }
        if (!why.empty()) {
            return why;
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
        return std::string();
    }

    /// Why a layer of a file cannot be this model's; "" if it can. Adds the size of its centre to `center`.
    std::string misfit(const mnnkv::snapshot& file, std::uint32_t number, std::size_t& center) {
        mnnkv_snapshot_layer_info info = mnnkv::make<mnnkv_snapshot_layer_info>();
        const mnnkv::status read = file.layer_info(number, info);
        if (!read) {
            return read.message();
        }
        layer& own = numbered(number);
        const std::string why = own.object_();
        if (!why.empty()) {
            return why;
        }
        const mnnkv_cache cache = own.see_();
        const mnnkv_layout& layout = *cache.layout;
        center += center_bytes(layout);
        const bool fits = info.layer == number && info.key_dtype == layout.key_dtype &&
                          info.value_dtype == layout.value_dtype && info.kv_heads == layout.kv_heads &&
                          info.head_dim == layout.head_dim;
        return fits ? "" : "layer " + std::to_string(number) + " of the file is of a cache of another type or shape";
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
        chat_.tokens = state.tokens;
        chat_.prompt = state.prompt;
        std::size_t center = 0;
        for (std::uint32_t number = 0; number < of_.layers.size(); ++number) {
            layer& own = numbered(number);
            const std::size_t bytes = center_bytes(*own.see_().layout);
            own.center_ = state.extra.substr(center, bytes);
            center += bytes;
            own.steps_->loaded(counts_of(meta_));
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
        state.tokens = chat_.tokens;
        state.prompt = chat_.prompt;
        for (std::uint32_t number = 0; number < of_.layers.size(); ++number) {
            layer& own = numbered(number);
            const mnnkv_layout& layout = *own.see_().layout;
            if (own.is_loaded_) {
                state.extra += own.center_;
            } else if (center_bytes(layout) > 0) {
                state.extra.append(static_cast<const char*>(layout.int8->key_center), center_bytes(layout));
            }
        }
        return state;
    }

    static std::size_t center_bytes(const mnnkv_layout& layout) {
        return layout.int8 == nullptr ? 0 : static_cast<std::size_t>(layout.int8->key_center_bytes);
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
    const chat& chat_;
    bool is_interrupted_ = false;
};

inline void layer::take_commands() {
    host* const of = host_.get();
    of->layers.push_back(this);
    of->run = [of](MNN::KVMeta& meta, const mnnkv_host::chat_command& what, const chat& chat) {
        return commands(*of, meta, chat).run(what);
    };
}

}  // namespace mnnkv_mnn

#endif  // MNNKV_MNN_CHAT_HPP
