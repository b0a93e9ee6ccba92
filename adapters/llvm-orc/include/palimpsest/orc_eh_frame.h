// Unwind tables as observers of packs want them. Used by `palimpsest/orc.h`.
//
// Compilers write the pointers in `.eh_frame` relative to where they are. `palimpsest_alloc_set_eh_frame` takes
// absolute ones, since the table is copied away from the code. Format: Linux Standard Base Core 5.0, 10.6, and
// "DWARF Exception Header Encoding", 10.5.1.

#ifndef PALIMPSEST_ORC_EH_FRAME_H
#define PALIMPSEST_ORC_EH_FRAME_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

namespace palimpsest {
namespace orc {

// Rewrites records, one after the other, as they are when all their pointers are final.
class AbsoluteEhFrame {
public:
  // Appends the records in `len` bytes at `bytes`, which are at `address` when they are used. False if something in
  // them is of a kind that is not known (`unknown_at` says where); then the whole is worthless.
  bool append(const char *bytes, size_t len, uint64_t address) {
    Reader all = {reinterpret_cast<const unsigned char *>(bytes), len, address};
    while (all.len != 0) {
      auto begin = all.address;
      last = static_cast<size_t>(begin - address);
      uint64_t body_len = 0;
      if (!all.number(4, body_len) || body_len > all.len || body_len == 0xffffffff)
        return false;
      // The table's end.
      if (body_len == 0)
        continue;
      Reader body = {all.at, static_cast<size_t>(body_len), all.address};
      all.skip(body.len);
      auto id_at = body.address;
      uint64_t id = 0;
      if (!body.number(4, id) || !(id == 0 ? cie(body, begin) : fde(body, id_at - id)))
        return false;
    }
    return true;
  }

  // The offset of the record that `append` did not know, in the bytes that it was given.
  size_t unknown_at() const { return last; }

  const std::vector<unsigned char> &table() const { return output; }

  // Whether it describes any code.
  bool is_empty() const { return !has_descriptions; }

private:
  // Kinds of pointers, `DW_EH_PE_…`.
  enum : unsigned char { Absolute = 0, Relative = 0x10, Indirect = 0x80, Omitted = 0xff };

  struct Reader {
    const unsigned char *at;
    size_t len;
    // Of `at`, when it is used.
    uint64_t address;

    bool skip(size_t count) {
      if (count > len)
        return false;
      at += count, len -= count, address += count;
      return true;
    }

    bool number(size_t bytes, uint64_t &value) {
      value = 0;
      auto *from = at;
      if (!skip(bytes))
        return false;
      for (size_t i = 0; i < bytes; ++i)
        value |= static_cast<uint64_t>(from[i]) << (8 * i);
      return true;
    }

    bool leb128(uint64_t &value) {
      value = 0;
      for (unsigned shift = 0; shift < 64; shift += 7) {
        uint64_t byte = 0;
        if (!number(1, byte))
          return false;
        value |= (byte & 0x7f) << shift;
        if (byte < 0x80)
          return true;
      }
      return false;
    }

    // Reads a pointer, and makes it absolute. That of a place with a pointer stays one. Null stays null.
    bool pointer(unsigned kind, uint64_t &value) {
      auto here = address;
      auto format = kind & 0xf;
      size_t bytes = format == 0 || format == 4 || format == 12 ? 8 : format == 3 || format == 11 ? 4 : 0;
      if (format == 2 || format == 10)
        bytes = 2;
      if (bytes == 0 || !number(bytes, value))
        return false;
      if (format > 8 && bytes < 8 && (value >> (8 * bytes - 1) & 1) != 0)
        value |= ~uint64_t(0) << (8 * bytes);
      if (value != 0 && (kind & 0x70) == Relative)
        value += here;
      else if ((kind & 0x70) != 0 && (kind & 0x70) != Relative)
        return false;
      return true;
    }
  };

  // How the descriptions that refer to a CIE are to be read.
  struct Cie {
    size_t offset;
    bool is_augmented;
    unsigned code;
    unsigned data;
  };

  bool cie(Reader body, uint64_t address) {
    Cie known = {output.size(), false, Absolute, Omitted};
    std::vector<unsigned char> record(4);
    auto *fixed = body.at;
    uint64_t version = 0, letter = 0, unused = 0;
    if (!body.number(1, version) || (version != 1 && version != 3))
      return false;
    std::vector<unsigned char> letters;
    while (body.number(1, letter) && letter != 0)
      letters.push_back(static_cast<unsigned char>(letter));
    // The factors, and the register of the return address.
    if (letter != 0 || !body.leb128(unused) || !body.leb128(unused))
      return false;
    if (version == 1 ? !body.skip(1) : !body.leb128(unused))
      return false;
    record.insert(record.end(), fixed, body.at);
    if (!letters.empty() && letters[0] != 'z')
      return false;
    if (!letters.empty()) {
      known.is_augmented = true;
      uint64_t len = 0, kind = 0, value = 0;
      if (!body.leb128(len) || len > body.len)
        return false;
      Reader data = {body.at, static_cast<size_t>(len), body.address};
      body.skip(data.len);
      std::vector<unsigned char> rewritten;
      for (size_t i = 1; i < letters.size(); ++i) {
        // Letters without data: a signal's frame, the second key for return addresses.
        if (letters[i] == 'S' || letters[i] == 'B')
          continue;
        if ((letters[i] != 'P' && letters[i] != 'L' && letters[i] != 'R') || !data.number(1, kind))
          return false;
        // No compiler writes the start of code, or of a function's data, as the place of a pointer.
        if (letters[i] != 'P' && kind != Omitted && (kind & Indirect) != 0)
          return false;
        if (letters[i] == 'L') {
          known.data = static_cast<unsigned>(kind);
          rewritten.push_back(kind == Omitted ? Omitted : Absolute);
        } else if (letters[i] == 'R') {
          known.code = static_cast<unsigned>(kind);
          rewritten.push_back(Absolute);
        } else {
          if (!data.pointer(static_cast<unsigned>(kind), value))
            return false;
          rewritten.push_back(static_cast<unsigned char>(kind & Indirect));
          put(rewritten, value);
        }
      }
      // A length of one byte; letters that come again make it longer.
      if (rewritten.size() > 127)
        return false;
      record.push_back(static_cast<unsigned char>(rewritten.size()));
      record.insert(record.end(), rewritten.begin(), rewritten.end());
    }
    cies[address] = known;
    write(record, body);
    return true;
  }

  bool fde(Reader body, uint64_t of) {
    auto found = cies.find(of);
    if (found == cies.end())
      return false;
    auto &cie = found->second;
    std::vector<unsigned char> record;
    put(record, output.size() + 4 - cie.offset, 4);
    uint64_t start = 0, len = 0, data_len = 0, value = 0;
    // The length is of the same format, and relative to nothing.
    if (!body.pointer(cie.code, start) || !body.pointer(cie.code & 0xf, len))
      return false;
    put(record, start);
    put(record, len);
    if (cie.is_augmented) {
      if (!body.leb128(data_len) || data_len > body.len)
        return false;
      Reader data = {body.at, static_cast<size_t>(data_len), body.address};
      body.skip(data.len);
      bool has_data = cie.data != Omitted;
      if (has_data && !data.pointer(cie.data, value))
        return false;
      record.push_back(has_data ? 8 : 0);
      if (has_data)
        put(record, value);
    }
    has_descriptions = true;
    write(record, body);
    return true;
  }

  static void put(std::vector<unsigned char> &to, uint64_t value, size_t bytes = 8) {
    for (size_t i = 0; i < bytes; ++i)
      to.push_back(static_cast<unsigned char>(value >> (8 * i)));
  }

  // Appends a record: its length, what is rewritten of it, its instructions. Zeros, which do nothing, fill it up.
  void write(const std::vector<unsigned char> &record, const Reader &instructions) {
    auto len = (record.size() + instructions.len + 4 + 7) / 8 * 8 - 4;
    auto end = output.size() + 4 + len;
    put(output, len, 4);
    output.insert(output.end(), record.begin(), record.end());
    output.insert(output.end(), instructions.at, instructions.at + instructions.len);
    output.resize(end);
  }

  std::vector<unsigned char> output;
  // By their addresses.
  std::map<uint64_t, Cie> cies;
  bool has_descriptions = false;
  size_t last = 0;
};

} // namespace orc
} // namespace palimpsest

#endif // PALIMPSEST_ORC_EH_FRAME_H
