// Commands of a program for its chat, which come as JSON through an engine's config, and the file of a chat.
//
// C++11, needs neither exceptions nor RTTI.
//
//   chat_command   a config object as a command
//   chat_state     a chat without the tokens of its layers
//   known_chats    the files that a chat was saved to or loaded from

#ifndef MNNKV_CHAT_HPP
#define MNNKV_CHAT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mnnkv.hpp"
#include "mnnkv_json.hpp"

namespace mnnkv_host {

/// What to do about a file that a save must not go to.
inline const char* overwrite_hint() { return "; \"kv_overwrite\": true beside kv_save replaces it"; }

/// The keys of commands, for texts.
inline const char* command_keys() { return "kv_park, kv_save, kv_load and kv_trim_mb"; }

/// A config object with just one of the keys kv_park, kv_save, kv_load and kv_trim_mb; kv_overwrite may stand beside kv_save.
/// resume is of no key: a load of the file that the config names.
struct chat_command {
    enum { none, park, save, load, trim, resume } what = none;
    /// trim: the budget in millions of bytes.
    double megabytes = 0;
    /// save, load
    std::string path;
    /// save: also to a file that holds another chat.
    bool overwrites = false;
    /// Why the command is refused; "" if it is not.
    std::string refusal;

    /// none, without a refusal, if `content` has none of the keys.
    static chat_command read(const std::string& content) {
        chat_command command;
        const auto members = json_members(content);
        std::size_t extra = 0;
        for (const auto& member : members) {
            const std::string &key = member.first, &value = member.second;
            if (key == "kv_park") {
                command.what = park;
                if (value != "true") {
                    command.refusal = "kv_park is " + value + "; true expected";
                }
            } else if (key == "kv_trim_mb") {
                command.what = trim;
                if (!json_number(value, command.megabytes)) {
                    command.refusal = "kv_trim_mb is " + value + "; a number of 0 or more expected";
                }
            } else if (key == "kv_save" || key == "kv_load") {
                command.what = key == "kv_save" ? save : load;
                if (!json_path(value, command.path)) {
                    command.refusal = key + " is " + value + "; the path of a file expected, in UTF-8";
                }
            } else if (key == "kv_overwrite") {
                command.overwrites = value == "true";
                extra = 1;
                if (value != "true" && value != "false") {
                    command.refusal = "kv_overwrite is " + value + "; true or false expected";
                }
            }
        }
        if (command.what != none && members.size() > 1 + (command.what == save ? extra : 0)) {
            command.refusal = std::string(command_keys()) + " stand alone, but for kv_overwrite beside kv_save; " +
                              std::to_string(members.size()) + " keys are given";
        }
        return command;
    }
};

/// The parts of a chat beside the tokens of its layers: sections of its file, of little-endian numbers.
struct chat_state {
    /// The engine's counts before the next step, as step_counts.
    std::uint64_t previous = 0, remove = 0;
    std::vector<int> reserve;
    /// Positions that the next step's tokens follow.
    std::uint64_t positions = 0;
    std::vector<int> tokens;
    /// The engine's text of the prompt, and bytes of the adapter.
    std::string prompt, extra;

    mnnkv::status put(mnnkv::session& to) const {
        const std::string counts = this->counts(), ids = words(tokens);
        mnnkv::status done = to.put("chat.counts", counts.data(), counts.size());
        done = done ? to.put("chat.tokens", ids.data(), ids.size()) : done;
        done = done ? to.put("chat.prompt", prompt.data(), prompt.size()) : done;
        return done ? to.put("chat.extra", extra.data(), extra.size()) : done;
    }

    /// Why the state of a session's file cannot be used; "" if it can.
    std::string get(const mnnkv::session& from) {
        std::string counts, ids;
        mnnkv::status read = from.get("chat.counts", counts);
        read = read ? from.get("chat.tokens", ids) : read;
        read = read ? from.get("chat.prompt", prompt) : read;
        read = read ? from.get("chat.extra", extra) : read;
        if (!read) {
            return read.message();
        }
        if (counts.size() < 32 || counts.size() % 8 != 0 || number(counts, 0, 8) != 2) {
            return "section chat.counts is of another version of mnn-kv";
        }
        previous = number(counts, 8, 8);
        remove = number(counts, 16, 8);
        positions = number(counts, 24, 8);
        reserve = words(counts, 32);
        tokens = words(ids, 0);
        bool fits = previous <= INT32_MAX && remove <= previous && positions <= INT32_MAX && ids.size() % 4 == 0;
        std::uint64_t end = 0;
        for (std::size_t at = 0; at < reserve.size(); at += 2) {
            fits = fits && reserve[at] >= 0 && reserve[at + 1] > 0 && static_cast<std::uint64_t>(reserve[at]) >= end;
            end = static_cast<std::uint64_t>(reserve[at]) + static_cast<std::uint64_t>(reserve[at + 1]);
        }
        return fits && end <= remove ? "" : "sections chat.counts and chat.tokens have numbers that no chat has";
    }

    /// A hash of all but `extra`: two chats of the same length differ in their tokens or in their prompts.
    std::uint64_t hash() const {
        std::uint64_t hash = 0xCBF29CE484222325u;
        for (const char byte : counts() + words(tokens) + prompt) {
            hash = (hash ^ static_cast<std::uint8_t>(byte)) * 0x100000001B3u;
        }
        return hash;
    }

private:
    std::string counts() const {
        std::string all;
        for (const std::uint64_t number : {std::uint64_t(2), previous, remove, positions}) {
            write(all, number, 8);
        }
        return all + words(reserve);
    }

    static void write(std::string& to, std::uint64_t number, int bytes) {
        for (int i = 0; i < bytes; ++i) {
            to += static_cast<char>(number >> 8 * i & 0xFF);
        }
    }

    static std::string words(const std::vector<int>& numbers) {
        std::string all;
        for (const int number : numbers) {
            write(all, static_cast<std::uint32_t>(number), 4);
        }
        return all;
    }

    static std::uint64_t number(const std::string& from, std::size_t at, std::size_t bytes) {
        std::uint64_t number = 0;
        for (std::size_t i = bytes; i > 0; --i) {
            number = number << 8 | static_cast<std::uint8_t>(from[at + i - 1]);
        }
        return number;
    }

    static std::vector<int> words(const std::string& from, std::size_t at) {
        std::vector<int> numbers;
        for (; at + 4 <= from.size(); at += 4) {
            numbers.push_back(static_cast<int>(static_cast<std::uint32_t>(number(from, at, 4))));
        }
        return numbers;
    }
};

/// The fingerprint of a model: length, and a hash of the first and last 64 KiB, of each of its files.
inline std::string fingerprint_of(const std::vector<std::string>& files) {
    const std::streamoff part = 65536;
    std::string mark = "files";
    for (const std::string& path : files) {
        std::ifstream file(path, std::ios::binary | std::ios::ate);
        const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : 0;
        std::uint64_t hash = 0xCBF29CE484222325u;
        std::vector<char> bytes(static_cast<std::size_t>(std::min(size, part)));
        for (const std::streamoff from : {std::streamoff(0), std::max(size - part, std::streamoff(0))}) {
            if (!bytes.empty() && file.seekg(from) && file.read(bytes.data(), static_cast<std::streamoff>(bytes.size()))) {
                for (const char byte : bytes) {
                    hash = (hash ^ static_cast<std::uint8_t>(byte)) * 0x100000001B3u;
                }
            }
        }
        mark += " " + std::to_string(size) + ":" + std::to_string(hash);
    }
    return mark;
}

/// The states of files in which a chat was saved or loaded last. A save to a file in any other state would overwrite another
/// chat.
class known_chats {
public:
    /// The chat is another one from now on.
    void forget() { files_.clear(); }

    void remember(const std::string& path, const chat_state& state) { files_[path] = state.hash(); }

    /// Why a save of `chat` to a file that has `found` would overwrite another chat; "" if it would not: a chat left the file so,
    /// under any name, or its tokens begin with those of the file.
    std::string conflict(const std::string& path, const chat_state& found, const chat_state& chat) const {
        const std::vector<int>&old = found.tokens, &now = chat.tokens;
        const std::uint64_t here = found.hash();
        if (std::any_of(files_.begin(), files_.end(),
                        [here](const std::pair<const std::string, std::uint64_t>& file) { return file.second == here; }) ||
            (!old.empty() && old.size() <= now.size() && std::equal(old.begin(), old.end(), now.begin()))) {
            return "";
        }
        return path + (files_.find(path) == files_.end() ? " holds another chat" : " was saved by another chat since");
    }

private:
    std::map<std::string, std::uint64_t> files_;
};

}  // namespace mnnkv_host

#endif  // MNNKV_CHAT_HPP
