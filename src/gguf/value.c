/* value.c - metadata values as C values.
 *
 * Converters disagree about widths (a count is u32 in one file and i32 or u64 in the next), so
 * integers are taken by value; a float is never taken for an integer nor the other way round, since
 * that has always been a broken file.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <inttypes.h>

#include "base/check.h"
#include "base/error.h"
#include "gguf/file.h"

static bool is_integer(gguf_type type) {
  return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

/* A u64 above INT64_MAX becomes INT64_MAX: no caller has a use for one, and none takes it for
 * small. */
static int64_t load_integer(const uint8_t *p, gguf_type type) {
  uint64_t u = 0;
  memcpy(&u, p, gguf_scalar_bytes(type));
  switch (type) {
    case GGUF_I8:
      return (int8_t)u;
    case GGUF_I16:
      return (int16_t)u;
    case GGUF_I32:
      return (int32_t)u;
    case GGUF_I64:
      return (int64_t)u;
    default:
      return u > INT64_MAX ? INT64_MAX : (int64_t)u;
  }
}

static bool load_float(const uint8_t *p, gguf_type type, float *out) {
  double wide;
  if (type == GGUF_F32) {
    memcpy(out, p, sizeof *out);
    return true;
  }
  memcpy(&wide, p, sizeof wide);
  bool finite = wide - wide == 0;
  bool fits = !finite || (wide <= FLT_MAX && wide >= -FLT_MAX);
  if (fits) *out = (float)wide;
  return fits;
}

/* Finds the key and checks its type, for the four typed reads. */
static troika_status find_typed(const gguf *file, const char *key, bool (*right)(gguf_type),
                                const char *wanted, const gguf_kv **out, troika_error *err) {
  const gguf_kv *kv = gguf_find(file, key);
  if (!kv) return error_set(err, TROIKA_NOT_FOUND, "metadata has no key %s", key);
  if (!right(kv->type)) {
    return error_set(err, TROIKA_FORMAT, "metadata key %s has type %s, must be %s", key,
                     gguf_value_type_name(kv->type), wanted);
  }
  *out = kv;
  return TROIKA_OK;
}

static bool is_float(gguf_type type) {
  return type == GGUF_F32 || type == GGUF_F64;
}
static bool is_bool(gguf_type type) {
  return type == GGUF_BOOL;
}
static bool is_string(gguf_type type) {
  return type == GGUF_STRING;
}

troika_status gguf_get_u32(const gguf *file, const char *key, uint32_t *out, troika_error *err) {
  const gguf_kv *kv = NULL;
  troika_status status = find_typed(file, key, is_integer, "an integer", &kv, err);
  if (status) return status;
  int64_t value = load_integer(kv->data, kv->type);
  if (value < 0 || value > UINT32_MAX) {
    return error_set(
        err, TROIKA_FORMAT, "metadata key %s is %s%" PRId64 " (%s), must be 0 to %" PRIu32, key,
        value == INT64_MAX ? "at least " : "", value, gguf_value_type_name(kv->type), UINT32_MAX);
  }
  *out = (uint32_t)value;
  return TROIKA_OK;
}

troika_status gguf_get_f32(const gguf *file, const char *key, float *out, troika_error *err) {
  const gguf_kv *kv = NULL;
  troika_status status = find_typed(file, key, is_float, "f32 or f64", &kv, err);
  if (status) return status;
  if (!load_float(kv->data, kv->type, out)) {
    return error_set(err, TROIKA_FORMAT, "metadata key %s (f64) does not fit f32", key);
  }
  return TROIKA_OK;
}

troika_status gguf_get_bool(const gguf *file, const char *key, bool *out, troika_error *err) {
  const gguf_kv *kv = NULL;
  troika_status status = find_typed(file, key, is_bool, "bool", &kv, err);
  if (!status) *out = kv->data[0] != 0;
  return status;
}

troika_status gguf_get_string(const gguf *file, const char *key, bytes_view *out,
                              troika_error *err) {
  const gguf_kv *kv = NULL;
  troika_status status = find_typed(file, key, is_string, "string", &kv, err);
  if (!status) *out = gguf_string_at(kv, 0);
  return status;
}

bytes_view gguf_string_at(const gguf_kv *array, uint64_t i) {
  CHECK(array->elem == GGUF_STRING && i < array->n);
  if (array->type == GGUF_STRING) {
    return bytes_of((const char *)array->data + 8, (size_t)gguf_load_u64(array->data));
  }
  return bytes_of((const char *)array->data + array->at[2 * i], (size_t)array->at[2 * i + 1]);
}

float gguf_f32_at(const gguf_kv *array, uint64_t i) {
  CHECK(is_float(array->elem) && i < array->n);
  const uint8_t *p = array->data + i * gguf_scalar_bytes(array->elem);
  float value;
  if (load_float(p, array->elem, &value)) return value;
  return p[7] & 0x80 ? -FLT_MAX : FLT_MAX; /* an f64 that f32 cannot hold: the nearest it can */
}

int64_t gguf_int_at(const gguf_kv *array, uint64_t i) {
  CHECK((is_integer(array->elem) || array->elem == GGUF_BOOL) && i < array->n);
  return load_integer(array->data + i * gguf_scalar_bytes(array->elem), array->elem);
}
