/* Recorded tool calls: {messages, tools, name and arguments}. Both without thinking. */
{"[{\"role\":\"user\",\"content\":\"Turn on the lamp in the hall.\"}]",
 "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Get the weather in a city\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"set_lamp\",\"description\":\"Switch a lamp on or off\",\"parameters\":{\"type\":\"object\",\"properties\":{\"room\":{\"type\":\"string\"},\"on\":{\"type\":\"boolean\"}},\"required\":[\"room\",\"on\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"send_message\",\"description\":\"Send a text message\",\"parameters\":{\"type\":\"object\",\"properties\":{\"to\":{\"type\":\"string\"},\"body\":{\"type\":\"string\"}},\"required\":[\"to\",\"body\"]}}}]",
 "set_lamp{\"room\": \"hall\", \"on\": true}"},
{"[{\"role\":\"user\",\"content\":\"Use the tool to add 4580 and 1505.\"}]",
 "[{\"type\":\"function\",\"function\":{\"name\":\"add_numbers\",\"description\":\"Add two integers\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\"}},\"required\":[\"a\",\"b\"]}}}]",
 "add_numbers{\"a\": 4580, \"b\": 1505}"},
